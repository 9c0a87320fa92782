"""The learning bench: does a setting learn as well per sample as another, on the same prompts in the same order."""
