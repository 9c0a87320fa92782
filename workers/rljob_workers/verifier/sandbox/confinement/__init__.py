"""What a program of the policy may do, as data: Landlock rules and the system-call filter."""
