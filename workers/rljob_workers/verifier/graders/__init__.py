"""Reward functions: one file each, or a folder where one needs several, and one entry each in `registry.py`."""
