"""Equality by SymPy, for the graders that reproduce published ones: areal-math, boxed, answer_tag and gsm8k.

A second reader of LaTeX besides the one of `math`: what it accepts is what the original verifiers accept."""
