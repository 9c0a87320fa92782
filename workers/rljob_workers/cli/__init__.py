"""`rljob`: run a job on this machine, look at it, and show what a manifest means."""
