"""What every process needs: boot, logs, metrics, health, clock, retry. Knows nothing of tokens."""
