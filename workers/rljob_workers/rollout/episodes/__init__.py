"""Episodes: what happens between a leased prompt and a scored row: one generation, or many turns."""
