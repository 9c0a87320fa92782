"""Where model folders come from: built-in conversions, local folders, hub snapshots."""
