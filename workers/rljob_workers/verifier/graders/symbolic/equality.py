"""Symbolic equality of what `reader.py` reads: rung 8 of `areal-math` in mode compat, and stage B of the Oat rewards.

Runs in a grading worker only: simplifying may take for ever."""

import math

import sympy

from rljob_workers.verifier.graders.symbolic import reader
from rljob_workers.verifier.graders.symbolic.reader import Node

RELATIVE = 1e-4
_MOST_DIGITS = 15


def nodes_differ_by_zero(left: Node, right: Node) -> bool:
    """Return whether the difference simplifies to 0."""
    if not (isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr)):
        return False
    return bool(sympy.simplify(left - right) == 0)


def nodes_equal(left: Node, right: Node) -> bool:
    """Return whether two nodes are the same object, or their difference simplifies to 0."""
    return bool(left == right) or nodes_differ_by_zero(left, right)


def equations_equal(left: Node, right: Node) -> bool:
    """Return whether two equations say the same: equal |lhs - rhs|."""
    if not (isinstance(left, sympy.Eq) and isinstance(right, sympy.Eq)):
        return False
    ours, theirs = left.lhs - left.rhs, right.lhs - right.rhs
    return bool(sympy.simplify(ours - theirs) == 0 or sympy.simplify(ours + theirs) == 0)


def numerically_close(left: Node, right: Node) -> bool:
    """Return whether two real numbers without a named constant lie within a relative 1e-4."""
    values = [_real(node) for node in (left, right)]
    if None in values:
        return False
    ours, theirs = values
    assert ours is not None
    assert theirs is not None
    return math.isclose(ours, theirs, rel_tol=RELATIVE)


def matrices_close(left: Node, right: Node) -> bool:
    """Return whether two matrices are equal after rounding to 3 decimals."""
    if not (isinstance(left, sympy.MatrixBase) and isinstance(right, sympy.MatrixBase)) or left.shape != right.shape:
        return False
    pairs = [(_real(ours), _real(theirs)) for ours, theirs in zip(left, right, strict=True)]
    return all(a is not None and b is not None and round(a, 3) == round(b, 3) for a, b in pairs)


def _real(node: Node) -> float | None:
    # A decimal form of pi is not pi (docs/design/graders.md#s-5-5), so named constants have no value here.
    if not isinstance(node, sympy.Expr) or node.free_symbols or node.has(sympy.pi, sympy.E, sympy.I, sympy.oo):
        return None
    value = node.evalf(_MOST_DIGITS)
    return float(value) if value.is_Number and value.is_finite else None


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
    checks = (nodes_equal, equations_equal, numerically_close, matrices_close)
    return any(check(left, right) for check in checks)


def difference_is_zero(ours: str, theirs: str) -> bool | None:
    """Return whether the difference of two expressions simplifies to 0; False if a side cannot be read."""
    left, right = reader.read(ours), reader.read(theirs)
    if left is None or right is None:
        return False
    return bool(left == right) or nodes_differ_by_zero(left, right)
