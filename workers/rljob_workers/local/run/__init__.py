"""One segment of a run: its processes, who supervises them, and how it is shown and ended."""
