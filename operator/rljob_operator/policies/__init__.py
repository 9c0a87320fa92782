"""One question a file; pure, so that each answer is tested without a cluster."""
