"""Certificates of a job: a CA of its own, a leaf per role, when each is due, and the Secrets that hold them."""
