"""The optimizer: DeepSpeed, learning-rate schedule, utilisation of accelerators."""
