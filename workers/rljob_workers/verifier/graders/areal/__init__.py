"""`areal-math`: the reward of AReaL's mathematics verifier, and its corrections."""
