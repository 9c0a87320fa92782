"""What outlives a step: checkpoints, published weight versions, exported models."""
