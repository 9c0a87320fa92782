"""One Protocol and one gRPC client per conversation: work, grading, batches, weights."""
