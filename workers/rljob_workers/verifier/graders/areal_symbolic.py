"""Symbolic equality by our own reader: rung 8 of `areal-math` in mode compat, and stage B of the Oat rewards.

Runs in a grading worker only.
"""

from rljob_workers.verifier.graders import equality, reader


def symbolically_equal(ours: str, theirs: str) -> bool | None:
    """Return whether two expressions are equal; None if the answer's text is outside the reader's grammar."""
    if "~" in ours + theirs:
        # No space to the original's parser.
        return None
    left, right = reader.read(ours), reader.read(theirs)
    if left is None:
        return None
    if right is None:
        return False
    checks = (equality.equal, equality.equations_equal, equality.numerically_close, equality.matrices_close)
    return any(check(left, right) for check in checks)


def difference_is_zero(ours: str, theirs: str) -> bool | None:
    """Return whether the difference of two expressions simplifies to 0; False if a side cannot be read."""
    left, right = reader.read(ours), reader.read(theirs)
    if left is None or right is None:
        return False
    return bool(left == right) or equality.difference_is_zero(left, right)
