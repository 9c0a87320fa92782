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
_GOES_BEFORE = re.compile(r"[0-9)]\s{0,4}(?:[-+*/^:_\u00d7\u00f7]{1,2}|or|\u6216)\s{0,4}$")
_EMPHASIS = re.compile(r"(?<![\w)*])\*\*([^*\n]{1,200})\*\*(?![\w(*])")
_BOXED = re.compile(r"\\boxed\{([^{}]{1,200})\}")
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
    plain = _plain(capped)
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

    strict: where the digits are part of something else ("3/4", "5 million", "5 or 6"), that whole text, which is no
    number.
    """
    capped = text[-spans.MAX_SCANNED_CHARS :]
    if compat:
        runs = [run for run in _FLEXIBLE.findall(capped) if run not in ("", ".")]
        return runs[-1] if runs else None
    plain, last = _plain(capped), None
    for match in _FLEXIBLE.finditer(plain):
        last = match if any(char.isdigit() for char in match.group()) else last
    if last is None:
        return None
    run = last.group().rstrip(".,")
    end = last.start() + len(run)
    before = plain[max(0, last.start() - 16) : last.start()]
    is_factor = before[-1:].isdigit() if run.startswith("-") else _GOES_BEFORE.search(before) is not None
    # In prose an exclamation mark ends a sentence.
    if is_factor or (plain[end : end + 1] != "!" and _GOES_ON.match(plain, end)):
        return f"{before}{plain[last.start() : end + 16]}".strip()
    return _last_member(run)


def _last_member(run: str) -> str:
    sign, body = ("-", run[1:]) if run.startswith("-") else ("", run)
    whole, _, _ = body.partition(".")
    if _GROUPED.fullmatch(whole):
        return sign + body.replace(",", "")
    return body.rpartition(",")[2] if "," in body else run


def _plain(text: str) -> str:
    """Return a text with ASCII signs, without marks of emphasis and boxes around numbers."""
    signed = text if text.isascii() else text.translate(_MINUS)
    return _BOXED.sub(r"\1", _EMPHASIS.sub(r"\1", signed)) if "*" in text or "\\" in text else signed


def brackets(text: str, *, compat: bool) -> str | None:
    """Return the last number in square brackets."""
    found: list[str] = (_BRACKETS_COMPAT if compat else _BRACKETS).findall(text[-spans.MAX_SCANNED_CHARS :])
    return found[-1] if found else None


def same(ours: str, theirs: str, *, compat: bool) -> bool:
    """Return whether two extracted numbers are equal: as text, or in strict mode as exact decimals."""
    if compat or not (_DECIMAL.fullmatch(ours) and _DECIMAL.fullmatch(theirs)):
        return ours == theirs
    return Decimal(ours) == Decimal(theirs)
