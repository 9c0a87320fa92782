"""What writes a release into a folder, each time as the same bytes: `python -m release` (docs/releasing.md)."""
