"""One pass over a job: observe, plan, act, report in the status."""
