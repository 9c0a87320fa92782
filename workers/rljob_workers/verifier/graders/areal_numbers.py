"""When two plain numbers are equal for `areal-math` in mode compat (graders reference, 5.3 rung 3). Nothing is parsed
but digits.
"""

import re
from fractions import Fraction

_NUMBER = re.compile(r"([-+]?(?:[0-9]{1,1000}(?:\.[0-9]{0,1000})?|\.[0-9]{1,1000})(?:[eE][-+]?[0-9]{1,3})?)(\\?%)?")
# Python's own reader of numbers, which the original asks, takes full-width digits.
_FULL_WIDTH = {0xFF10 + digit: str(digit) for digit in range(10)}
RELATIVE = Fraction(1, 10_000)


def value(text: str) -> tuple[Fraction, bool] | None:
    """Return a plain number without its thousands commas, and whether a percent sign follows; None if it is none."""
    match = _NUMBER.fullmatch(text.strip().replace(",", "").translate(_FULL_WIDTH))
    if not match:
        return None
    return Fraction(match[1]), match[2] is not None


def compare(ours: str, theirs: str) -> bool | None:
    """Return whether two numbers are equal, None if a side is no plain number."""
    our, their = value(ours), value(theirs)
    if our is None or their is None:
        return None
    gold = their[0] / 100 if their[1] else their[0]
    return any(_close(our[0] / 100 if our[1] else our[0], one) for one in (gold / 100, gold, gold * 100))


def _close(ours: Fraction, theirs: Fraction) -> bool:
    return abs(ours - theirs) <= RELATIVE * max(abs(ours), abs(theirs))
