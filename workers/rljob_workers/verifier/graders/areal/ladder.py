"""The equality ladder of `areal-math` in mode compat (docs/design/graders.md#s-5-3): the first rung that decides wins.

Pure but for `symbolic`, the last rung, which the caller supplies: None from it means "not decided here". Texts are
normalised, and no deeper nested and no longer than `MOST_PARTS` parts, before they come here.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence
from fractions import Fraction

Symbolic = Callable[[str, str], bool | None]

MOST_PARTS = 64
_PLAIN_NUMBER = re.compile(
    r"([-+]?(?:[0-9]{1,1000}(?:\.[0-9]{0,1000})?|\.[0-9]{1,1000})(?:[eE][-+]?[0-9]{1,3})?)(\\?%)?"
)
# Python's own reader of numbers, which the original asks, takes full-width digits.
_FULL_WIDTH = {0xFF10 + digit: str(digit) for digit in range(10)}
RELATIVE = Fraction(1, 10_000)
_OPTIONS = ("A", "B", "C", "D", "E")
_LETTER = re.compile(r"\b([A-E])\b")
_ONLY_LETTER = re.compile(r"\(?([A-Ea-e])(?:\)?|[.):].{0,4096})", re.DOTALL)
_GROUP = re.compile(r"\{[^{}]{0,4096},[^{}]{0,4096}\}")
_BEGIN, _END = r"\begin{pmatrix}", r"\end{pmatrix}"
_BLIND = str.maketrans("", "", "{}()")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """Equality of an answer (ours) and a gold (theirs)."""

    symbolic: Symbolic

    def equal(self, ours: str, theirs: str) -> bool | None:
        """Return the decision, None if only the symbolic rung could make it and it did not."""
        if ours.casefold() == theirs.casefold() or _same_letter(ours, theirs):
            return True
        numeric = compare_numbers(ours, theirs)
        if numeric is not None:
            return numeric
        bracketed = self._brackets(ours, theirs)
        if bracketed is not None:
            return bracketed
        if _BEGIN in ours and _BEGIN not in theirs:
            theirs = _groups_as_matrix(theirs)
        if _is_matrix(ours) and _is_matrix(theirs):
            return self._matrices(ours, theirs)
        return self._relations(ours, theirs)

    def _brackets(self, ours: str, theirs: str) -> bool | None:
        """Rungs 4 and 5 without regard to the kind of bracket."""
        blind_ours, blind_theirs = ours, theirs
        square = _wrapped(ours, "[", "]") and not theirs.startswith("(")
        if square or (_wrapped(ours, "(", ")") and not theirs.startswith("[")):
            blind_ours, blind_theirs = blind_ours.strip("[]()"), blind_theirs.strip("[]()")
        if blind_ours.translate(_BLIND).casefold() == blind_theirs.translate(_BLIND).casefold():
            return True
        if not (_is_list(ours) and _is_list(theirs)):
            return None
        our_parts, their_parts = ours[1:-1].split(","), theirs[1:-1].split(",")
        if len(our_parts) != len(their_parts):
            return None
        return True if self._all(our_parts, their_parts) else None

    def _matrices(self, ours: str, theirs: str) -> bool | None:
        our_rows, their_rows = _cells(ours), _cells(theirs)
        if [len(row) for row in our_rows] != [len(row) for row in their_rows]:
            return False
        return self._all([cell for row in our_rows for cell in row], [cell for row in their_rows for cell in row])

    def _relations(self, ours: str, theirs: str) -> bool | None:
        if ours.count("=") == theirs.count("=") == 1:
            left, right = (f"{side.split('=')[0]}-({side.split('=')[1]})" for side in (ours, theirs))
            same = self.symbolic(left, right)
            return same if same else self.symbolic(f"-({left})", right)
        for equation, other, mine in ((ours, theirs, True), (theirs, ours, False)):
            if equation.count("=") == 1 and "=" not in other and len(equation.split("=")[0].strip()) <= 2:
                right = equation.split("=")[1]
                return self.equal(right, other) if mine else self.equal(other, right)
        return self.symbolic(ours, theirs)

    def _all(self, ours: Sequence[str], theirs: Sequence[str]) -> bool | None:
        decisions = []
        for our, their in zip(ours, theirs, strict=True):
            decisions.append(self.equal(our.strip(), their.strip()))
            if decisions[-1] is False:
                return False
        return None if None in decisions else True


def is_option(ours: str, theirs: str) -> bool:
    """Return whether an answer is the option letter of the gold: alone, in brackets, or before "." ")" or ":" (M6)."""
    match = _ONLY_LETTER.fullmatch(ours.strip()) if theirs in _OPTIONS else None
    return match is not None and match[1].upper() == theirs


def _same_letter(ours: str, theirs: str) -> bool:
    letters = _LETTER.findall(ours.upper()) if theirs in _OPTIONS else []
    return bool(letters) and letters[-1] == theirs


def _wrapped(text: str, first: str, last: str) -> bool:
    return text.startswith(first) and text.endswith(last)


def _is_list(text: str) -> bool:
    return len(text) > 1 and text[0] in "([" and text[-1] in ")]"


def _is_matrix(text: str) -> bool:
    return text.startswith(_BEGIN) and text.endswith(_END)


def _cells(matrix: str) -> list[list[str]]:
    rows = matrix[len(_BEGIN) : -len(_END)].split("\\\\")
    return [row.split("&") for row in rows if row.strip()]


def _groups_as_matrix(text: str) -> str:
    """Return a matrix whose rows are the `{..,..}` groups of a text, or the text if it has none."""
    rows = [group[1:-1].replace(",", "&") for group in _GROUP.findall(text)]
    return _BEGIN + "\\\\".join(rows) + _END if rows else text


def plain_number(text: str) -> tuple[Fraction, bool] | None:
    """Return a plain number without its thousands commas, and whether a percent sign follows; None if it is none."""
    match = _PLAIN_NUMBER.fullmatch(text.strip().replace(",", "").translate(_FULL_WIDTH))
    if not match:
        return None
    return Fraction(match[1]), match[2] is not None


def compare_numbers(ours: str, theirs: str) -> bool | None:
    """Return whether two numbers are equal, None if a side is not a plain number."""
    our, their = plain_number(ours), plain_number(theirs)
    if our is None or their is None:
        return None
    gold = their[0] / 100 if their[1] else their[0]
    return any(_close(our[0] / 100 if our[1] else our[0], target) for target in (gold / 100, gold, gold * 100))


def _close(ours: Fraction, theirs: Fraction) -> bool:
    return abs(ours - theirs) <= RELATIVE * max(abs(ours), abs(theirs))
