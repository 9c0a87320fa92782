"""The manifest, one file per section of `spec`: fields, bounds and what they mean."""
