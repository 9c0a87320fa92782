"""The same manifest without a cluster: one child process per role, live progress, a summary and a report."""
