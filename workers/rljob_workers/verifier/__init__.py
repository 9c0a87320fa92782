"""Grades completions: one verdict per item, in processes that can be killed. It is called and never calls."""
