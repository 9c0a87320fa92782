"""`code` and `areal-code`: run the program of an answer on test cases."""
