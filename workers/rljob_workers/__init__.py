"""What handles tokens: the programs of a job, the local runner and the command line."""
