"""What a confined program must ask its runner for, and the answers: new processes and threads, and paths."""
