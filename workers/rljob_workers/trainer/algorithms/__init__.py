"""The mathematics of a step, pure: losses, correction of off-policy data, advantages, statistics."""
