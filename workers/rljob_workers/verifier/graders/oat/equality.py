"""Stage B of the Oat rewards on normalised texts: parts, fractions, integers, then a difference that simplifies to 0
(docs/design/graders.md#s-8-2). Pure but for `symbolic`, which the caller supplies; None from it means "not decided
here".
"""

import re
from collections.abc import Callable
from fractions import Fraction

from rljob_workers.verifier.graders.areal import ladder
from rljob_workers.verifier.graders.math import brackets

Symbolic = Callable[[str, str], bool | None]

_MOST_LETTERS = 2
_CLOSE_TO_INTEGER = Fraction(1, 10**7)
_FRACTION = re.compile(r"-?[0-9]{1,1000}/0*[1-9][0-9]{0,1000}")
_GROUPED = re.compile(r"[-+]?[0-9]{1,3}(?:,[0-9]{3}){1,1000}(?:\.[0-9]{0,1000})?%?")
_INTEGER = re.compile(r"[-+]?[0-9]{1,3}(?:,?[0-9]{3})*|[-+]?[0-9]{1,4096}")
_TOO_HARD = re.compile(r"\^\{|\^\(|\^[0-9]{1,4096}\^|\^[0-9]{2}")
_FUNCTIONS = ("sqrt", "frac")


def equal(ours: str, theirs: str, symbolic: Symbolic) -> bool | None:
    """Return the decision on two texts of stage B's normal form, None if only `symbolic` could make it."""
    if not ours:
        return False
    if ours == theirs:
        return True
    our_parts, their_parts = _parts(ours), _parts(theirs)
    if len(their_parts) > 1 and (ours[0], ours[-1]) != (theirs[0], theirs[-1]):
        return False
    if len(our_parts) != len(their_parts):
        return False
    decisions = [_part(our, their, symbolic) for our, their in zip(our_parts, their_parts, strict=True)]
    if False in decisions:
        return False
    return None if None in decisions else True


def _parts(text: str) -> list[str]:
    """Return what is between the commas of a bracketed list, or the text."""
    inner = text[1:-1]
    enclosed = len(text) > 2 and text[0] in "([" and text[-1] in ")]" and not set(inner) & set("()[]")
    return brackets.split(inner) if enclosed else [text]


def _part(ours: str, theirs: str, symbolic: Symbolic) -> bool | None:
    if ours == theirs:
        return True
    if _FRACTION.fullmatch(ours) and _FRACTION.fullmatch(theirs):
        return False
    our_number, their_number = (_number(side) for side in (ours, theirs))
    if _is_integer(ours, our_number) != _is_integer(theirs, their_number):
        return False
    if our_number is not None and their_number is not None:
        return our_number == their_number
    difference = f"({theirs})-({ours})"
    return symbolic(ours, theirs) if _is_tried(difference) else False


def _number(text: str) -> tuple[Fraction, bool] | None:
    # A comma that groups no thousands separates two numbers.
    return ladder.plain_number(text) if "," not in text or _GROUPED.fullmatch(text) else None


def _is_integer(text: str, number: tuple[Fraction, bool] | None) -> bool:
    if number is None or number[1]:
        return _INTEGER.fullmatch(text) is not None
    return abs(number[0] - round(number[0])) <= _CLOSE_TO_INTEGER


def _is_tried(expression: str) -> bool:
    if _TOO_HARD.search(expression):
        return False
    for name in _FUNCTIONS:
        expression = expression.replace(name, "")
    return len({char for char in expression if char.isalpha()}) <= _MOST_LETTERS
