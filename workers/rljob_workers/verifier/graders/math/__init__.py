"""`math`: finds an answer in a completion and compares it with the reference; see docs/reading_an_answer.md.

Everything but the grader itself is shared: other graders find and compare mathematical answers with it too."""
