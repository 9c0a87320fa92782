"""What is right? Pure functions of a completion and a record; the hosting process enforces limits."""
