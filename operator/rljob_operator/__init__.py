"""The operator: decides about the pods of RLJobs; never on the data path."""
