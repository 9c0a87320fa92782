"""What handles tokens: the four programs of a job, the local runner and the command line."""
