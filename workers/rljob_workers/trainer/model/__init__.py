"""The model as the losses see it: packed batches in, log-probabilities or values out."""
