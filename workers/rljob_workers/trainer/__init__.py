"""The trainer: packed micro-batches in, optimizer updates, published weight versions and checkpoints out."""
