"""Kueue: what a job asks a queue for, what the queue says of it, and what it is told in return."""
