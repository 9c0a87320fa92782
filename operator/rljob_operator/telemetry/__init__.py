"""Metrics of the operator and of its jobs, and the health server."""
