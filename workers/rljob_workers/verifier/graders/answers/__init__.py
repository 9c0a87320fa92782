"""Reading an answer: which text it is (spans), what that says (forms), whether the gold says the same (comparison)."""
