"""How much of a long proof runs: a share of it with every test command, all of it where each example is asked for."""

import os

EVERY_EXAMPLE = "RLJOB_EVERY_EXAMPLE"


def as_many(every: int, *, usually: int) -> int:
    """Return how many examples of a proof run: `every` one with RLJOB_EVERY_EXAMPLE=1."""
    return every if os.environ.get(EVERY_EXAMPLE) else usually
