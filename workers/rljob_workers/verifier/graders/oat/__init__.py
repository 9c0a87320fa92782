"""`boxed` and `answer_tag`: the rewards of Oat and understand-r1-zero, and their corrections."""
