"""Experiment trackers: what one is, one file per built-in type, and the processes that they run in."""
