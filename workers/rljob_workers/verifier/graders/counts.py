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
    r"####\s{0,64}([-+]?)\s{0,4}(?:\\?[$€£¥₹])?\s{0,4}([-+]?)\s{0,4}([0-9][0-9,]{0,1000}(?:\.[0-9]{1,1000})?|\.[0-9]{1,1000})"
)
# What goes on behind the digits is part of the number, so that the digits alone are not the answer.
_GOES_ON = re.compile(
    r"[.,]?[0-9]|\s{0,4}(?:[/^*:!\u00d7\u00f7+=<>_]|\\times|\\cdot|\\frac|-\s{0,4}[0-9])|\s{1,4}[0-9.]"
    r"|[A-Za-z\u03c0](?![A-Za-z])"
    r"|\s{0,4}(?:hundred|thousand|million|billion|trillion|dozen|[\u767e\u5343\u4e07\u4ebf])"
    r"|\s{0,4},?\s{0,4}(?:or|and|to|\u6216)\s{0,4}[-+$]?[0-9]|,\s{0,4}[0-9]|e[-+]?[0-9]",
    re.IGNORECASE,
)
_MINUS = dict.fromkeys(map(ord, "\u2212\u2013\u2012\ufe63\uff0d"), "-")
_GROUPED = re.compile(r"[0-9]{1,3}(?:,[0-9]{3}){1,300}|[0-9]{1,1000}")
_FLEXIBLE = re.compile(r"-?[0-9.,]{1,1000}")
_BRACKETS_COMPAT = re.compile(r"\[([0-9.]{1,1000})\]")
_BRACKETS = re.compile(r"\[\s{0,64}([-+]?[0-9.]{1,1000})\s{0,64}\]")
_DECIMAL = re.compile(r"[-+]?(?:[0-9]{1,1000}\.?[0-9]{0,1000}|\.[0-9]{1,1000})")


def hashes(text: str, *, compat: bool) -> str | None:
    """Return the number after the last four hashes, without the commas between its thousands.

    strict: where the digits go on as something else ("3/4", "5 million", "1,2"), that whole text, which is no number.
    """
    capped = text[-spans.MAX_SCANNED_CHARS :]
    if compat:
        found: list[str] = _HASHES_COMPAT.findall(capped)
        return found[-1].replace(",", "") if found else None
    plain = _signs(capped)
    last = None
    for match in _HASHES.finditer(plain):
        last = match
    if last is None:
        return None
    first, second, number = last.groups()
    whole, point, decimals = number.rstrip(",").partition(".")
    end = last.end() - (len(number) - len(number.rstrip(",")))
    if _GOES_ON.match(plain, end) or (whole and not _GROUPED.fullmatch(whole)):
        return plain[last.start() + 4 : end + 16].strip()
    return ("-" if "-" in first + second else "") + whole.replace(",", "") + point + decimals


def gold(text: str, *, compat: bool) -> str | None:
    """Return the number that a gold has after its last four hashes; strict falls back to the original's rule."""
    found = hashes(text, compat=compat)
    if not compat and (found is None or not _DECIMAL.fullmatch(found)):
        return hashes(text, compat=True) or found
    return found


def flexible(text: str, *, compat: bool) -> str | None:
    """Return the last run of digits, dots and commas; strict takes a run of commas that group no thousands for a list,
    of which the last counts.
    """
    capped = text[-spans.MAX_SCANNED_CHARS :]
    runs = [run for run in _FLEXIBLE.findall(capped if compat else _signs(capped)) if run not in ("", ".")]
    if compat:
        return runs[-1] if runs else None
    numbers = [_last_member(run.rstrip(".,")) for run in runs]
    return next((number for number in reversed(numbers) if any(char.isdigit() for char in number)), None)


def _last_member(run: str) -> str:
    sign, body = ("-", run[1:]) if run.startswith("-") else ("", run)
    whole, _, _ = body.partition(".")
    if _GROUPED.fullmatch(whole):
        return sign + body.replace(",", "")
    return body.rpartition(",")[2] if "," in body else run


def _signs(text: str) -> str:
    return text if text.isascii() else text.translate(_MINUS)


def brackets(text: str, *, compat: bool) -> str | None:
    """Return the last number in square brackets."""
    found: list[str] = (_BRACKETS_COMPAT if compat else _BRACKETS).findall(text[-spans.MAX_SCANNED_CHARS :])
    return found[-1] if found else None


def same(ours: str, theirs: str, *, compat: bool) -> bool:
    """Return whether two extracted numbers are equal: as text, or in strict mode as exact decimals."""
    if compat or not (_DECIMAL.fullmatch(ours) and _DECIMAL.fullmatch(theirs)):
        return ours == theirs
    return Decimal(ours) == Decimal(theirs)
