"""Symbolic equality by our own reader: rung 8 of `areal-math`, and stage B of the Oat rewards.

Runs in a grading worker only.
"""

import sympy

from rljob_workers.verifier.graders import equality, reader


def symbolically_equal(ours: str, theirs: str, *, compat: bool) -> bool | None:
    """Return whether two expressions are equal; None if the answer's text is outside the reader's grammar.

    strict compares two integers exactly (M4).
    """
    left, right = reader.read(ours), reader.read(theirs)
    if left is None:
        return None
    if right is None:
        return False
    if not compat and _are_integers(left, right):
        return bool(left == right)
    checks = (equality.equal, equality.equations_equal, equality.numerically_close, equality.matrices_close)
    return any(check(left, right) for check in checks)


def difference_is_zero(ours: str, theirs: str) -> bool | None:
    """Return whether the difference of two expressions simplifies to 0; False if a side cannot be read."""
    left, right = reader.read(ours), reader.read(theirs)
    if left is None or right is None:
        return False
    return bool(left == right) or equality.difference_is_zero(left, right)


def _are_integers(left: reader.Node, right: reader.Node) -> bool:
    return isinstance(left, sympy.Integer) and isinstance(right, sympy.Integer)
