"""Decisions about a job. Pure, so that each is tested without a cluster."""
