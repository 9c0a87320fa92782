"""What can be checked before anything starts."""
