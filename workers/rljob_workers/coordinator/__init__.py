"""The coordinator: prompts to leases, submissions to the ledger, groups to batches, weight versions to rollouts."""
