"""Where the number of a GSM8K or counting answer stands. Pure, linear, on capped text; `compat` is the original's rule.

strict corrects: G1 spaces, currency signs and a plus sign after the four hashes, trailing punctuation; G2 exact
decimals; G3 commas and trailing punctuation of flexible; G4 spaces and a sign inside brackets.
"""

import re
from decimal import Decimal

from rljob_workers.verifier.graders.answers import spans

MAX_NUMBER_CHARS = 1000

_HASHES_COMPAT = re.compile(r"#### (-?[0-9.,]{1,1000})")
_HASHES = re.compile(
    r"####\s{0,64}([-+]?)[$€£¥]?([-+]?)\s{0,4}([0-9]{1,3}(?:,[0-9]{3}){1,300}|[0-9]{1,1000})(\.[0-9]{1,1000})?"
)
_FLEXIBLE = re.compile(r"-?[0-9.,]{1,1000}")
_BRACKETS_COMPAT = re.compile(r"\[([0-9.]{1,1000})\]")
_BRACKETS = re.compile(r"\[\s{0,64}([-+]?[0-9.]{1,1000})\s{0,64}\]")
_DECIMAL = re.compile(r"[-+]?(?:[0-9]{1,1000}\.?[0-9]{0,1000}|\.[0-9]{1,1000})")


def hashes(text: str, *, compat: bool) -> str | None:
    """Return the number after the last four hashes, without commas."""
    capped = text[-spans.MAX_SCANNED_CHARS :]
    if compat:
        found: list[str] = _HASHES_COMPAT.findall(capped)
        return found[-1].replace(",", "") if found else None
    matches: list[tuple[str, str, str, str]] = _HASHES.findall(capped)
    if not matches:
        return None
    first, second, whole, decimals = matches[-1]
    return ("-" if "-" in first + second else "") + whole.replace(",", "") + decimals


def flexible(text: str, *, compat: bool) -> str | None:
    """Return the last run of digits, dots and commas; strict removes its commas and trailing punctuation."""
    runs = [run for run in _FLEXIBLE.findall(text[-spans.MAX_SCANNED_CHARS :]) if run not in ("", ".")]
    if compat:
        return runs[-1] if runs else None
    numbers = [run.rstrip(".,").replace(",", "") for run in runs]
    return next((number for number in reversed(numbers) if any(char.isdigit() for char in number)), None)


def brackets(text: str, *, compat: bool) -> str | None:
    """Return the last number in square brackets."""
    found: list[str] = (_BRACKETS_COMPAT if compat else _BRACKETS).findall(text[-spans.MAX_SCANNED_CHARS :])
    return found[-1] if found else None


def same(ours: str, theirs: str, *, compat: bool) -> bool:
    """Return whether two extracted numbers are equal: as text, or in strict mode as exact decimals."""
    if compat or not (_DECIMAL.fullmatch(ours) and _DECIMAL.fullmatch(theirs)):
        return ours == theirs
    return Decimal(ours) == Decimal(theirs)
