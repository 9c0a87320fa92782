"""When two plain numbers are equal for `areal-math` (graders reference, 5.3 rung 3; M2, M4). Exact; nothing is parsed
but digits.
"""

import re
from fractions import Fraction

_NUMBER = re.compile(r"([-+]?(?:[0-9]{1,1000}(?:\.[0-9]{0,1000})?|\.[0-9]{1,1000})(?:[eE][-+]?[0-9]{1,3})?)(\\?%)?")
RELATIVE = Fraction(1, 10_000)


def value(text: str) -> tuple[Fraction, bool] | None:
    """Return a plain number without its thousands commas, and whether a percent sign follows; None if it is none."""
    match = _NUMBER.fullmatch(text.strip().replace(",", ""))
    if not match:
        return None
    return Fraction(match[1]), match[2] is not None


def compare(ours: str, theirs: str, *, compat: bool) -> bool | None:
    """Return whether two numbers are equal, None if a side is no plain number."""
    our, their = value(ours), value(theirs)
    if our is None or their is None:
        return None
    if compat:
        gold = their[0] / 100 if their[1] else their[0]
        return any(_close(our[0] / 100 if our[1] else our[0], one) for one in (gold / 100, gold, gold * 100))
    return any(_equal(one, other) for one, other in _readings(our, their))


def _readings(our: tuple[Fraction, bool], their: tuple[Fraction, bool]) -> list[tuple[Fraction, Fraction]]:
    """A percent sign on one side only may be read as p or as p/100; on both sides it says nothing."""
    (ours, our_sign), (theirs, their_sign) = our, their
    readings = [(ours, theirs)]
    if our_sign and not their_sign:
        readings.append((ours / 100, theirs))
    if their_sign and not our_sign:
        readings.append((ours, theirs / 100))
    return readings


def _equal(ours: Fraction, theirs: Fraction) -> bool:
    if ours.denominator == theirs.denominator == 1:
        return ours == theirs
    return _close(ours, theirs)


def _close(ours: Fraction, theirs: Fraction) -> bool:
    return abs(ours - theirs) <= RELATIVE * max(abs(ours), abs(theirs))
