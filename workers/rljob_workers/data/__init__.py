"""Data sources: records and their validation. Used by the coordinator, and by the rollout's check of prompt lengths."""
