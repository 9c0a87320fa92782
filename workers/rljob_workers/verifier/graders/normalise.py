"""Spelling differences that never change a value: layout commands, spaces, units in text, signs, thousands commas.

Pure and linear: every pattern has bounded repetition. What is left is compared as text or read as a number.
"""

import re
from fractions import Fraction

from rljob_workers.verifier.graders import areal_text, extract

MAX_DIGITS = 1000

_DELETED = (
    r"\left", r"\right", r"\displaystyle", r"\,", r"\;", r"\:", r"\!", r"\ ", r"\(", r"\)", r"\[", r"\]", "^{\\circ}",
    r"^\circ", r"\degree", r"\$", "$", "~",
)  # fmt: skip
# Code points are the minus sign, the en dash and the multiplication sign.
_REPLACED = (
    (r"\dfrac", r"\frac"), (r"\tfrac", r"\frac"), (r"\cfrac", r"\frac"), ("\u2212", "-"), ("\u2013", "-"),
    ("\u00d7", r"\times"), (r"\cdot", r"\times"), ("**", "^"), (r"\%", "%"), (r"\neq", r"\ne"),
    (r"\leq", r"\le"), (r"\geq", r"\ge"),
    ("≤", r"\le"), ("≥", r"\ge"), ("≠", r"\ne"), ("π", r"\pi"), ("√", r"\sqrt"), ("∞", r"\infty"),
)  # fmt: skip
_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname)\{([^{}]{0,256})\}")
_UNIT_AT_END = re.compile(
    r"(?<=[0-9})\]])\s{0,8}\\(?:text|textbf|textit|mathrm|mbox)\{[^{}]{0,256}\}(?:\^\{?[23]\}?)?$"
)
_LETTERS_OF_A_PRODUCT = re.compile(r" [abc]{1,8}$")
_PERCENT_WORD = re.compile(r"(?<=[0-9}])\s{0,8}(?:\\?%|percent|pct)$")
_ASSIGNMENT = re.compile(r"^[A-Za-z](?:_\{?[0-9A-Za-z]\}?)?=(?!=)")
_SHORT_FRACTION = re.compile(r"\\frac([0-9])([0-9])(?![0-9])")
_THOUSANDS = re.compile(r"(?<![0-9])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])")
_GROUPED = re.compile(r"[0-9]{1,3}(?:,[0-9]{3}){1,333}")
_CURRENCY = str.maketrans("", "", "€£¥")
# A space between digits separates them ("3 1/2"); any other says nothing.
_IDLE_SPACE = re.compile(r"(?<![0-9])\s{1,4096}|\s{1,4096}(?![0-9])")
_MIXED = re.compile(r"(-?[0-9]{1,1000})\s{1,64}([0-9]{1,1000})/([0-9]{1,1000})")

_FRACTION = re.compile(r"(-?)([0-9]{0,1000})\\frac\{(-?[0-9]{1,1000})\}\{(-?[0-9]{1,1000})\}")
_QUOTIENT = re.compile(r"(-?)()(-?[0-9]{1,1000})/(-?[0-9]{1,1000})")
_DECIMAL = re.compile(r"[-+]?(?:[0-9]{1,1000}(?:\.[0-9]{0,1000})?|\.[0-9]{1,1000})")


def normalise(text: str) -> str:
    """Return the canonical spelling of an answer of at most 4,096 characters."""
    text = text[: extract.MAX_ANSWER_CHARS].strip()
    if _is_plain_integer(text):
        return text
    text = _without_bare_unit(_PERCENT_WORD.sub("%", text))
    for old in _DELETED:
        text = text.replace(old, "")
    for old, new in _REPLACED:
        text = text.replace(old, new)
    text = _UNIT_AT_END.sub("", _without_spaces(text.translate(_CURRENCY)))
    text = _TEXT.sub(r"\1", text)
    text = _ASSIGNMENT.sub("", text)
    text = _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", text)
    text = _THOUSANDS.sub(lambda match: match.group().replace(",", ""), text) if _is_one_number(text) else text
    return _without_outer_braces(text.rstrip(".").removeprefix("+"))


def without_unit(text: str) -> str:
    """Return an answer without the unit that is set as text at its end: `5\\text{ cm}` is 5."""
    return _without_bare_unit(_PERCENT_WORD.sub(r"\\%", _UNIT_AT_END.sub("", text.strip())))


def _without_bare_unit(text: str) -> str:
    """Return a text without a unit word that stands apart after its value: "5 cm" is 5, but "5 ab" is a product."""
    if " " not in text or _LETTERS_OF_A_PRODUCT.search(text):
        return text
    return areal_text.without_unit_at_end(text)


def _without_spaces(text: str) -> str:
    text = _IDLE_SPACE.sub("", text)
    mixed = _MIXED.fullmatch(text)
    return rf"{mixed[1]}\frac{{{mixed[2]}}}{{{mixed[3]}}}" if mixed else text


def _is_one_number(text: str) -> bool:
    # "(1,234)" or "1,234, 5" may be lists of numbers: commas go only where one number is the whole text.
    body = text.removeprefix("-").removeprefix("+").rstrip("%.")
    return bool(_GROUPED.fullmatch(body.split(".", 1)[0]))


def _without_outer_braces(text: str) -> str:
    for _ in range(3):
        if not text.startswith("{") or extract.balanced(text, 1) != text[1:-1]:
            return text
        text = text[1:-1]
    return text


def rational(text: str) -> Fraction | None:
    """Return the exact value of a normalised plain number: integer, decimal, fraction, mixed number, any in percent.

    None if it is anything else, or longer than 1,000 digits, or divides by 0. Nothing is evaluated beyond one division.
    """
    percent = text.endswith("%")
    value = _plain(text.removesuffix("%"))
    return value / 100 if value is not None and percent else value


def _is_plain_integer(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _plain(text: str) -> Fraction | None:
    if len(text) > 3 * MAX_DIGITS + 16:
        return None
    if _is_plain_integer(text):
        return Fraction(int(text)) if len(text) <= MAX_DIGITS else None
    match = _FRACTION.fullmatch(text) or _QUOTIENT.fullmatch(text)
    if not match:
        return Fraction(text.removesuffix(".")) if _DECIMAL.fullmatch(text) else None
    sign, whole, top, bottom = match.groups()
    if int(bottom) == 0:
        return None
    value = Fraction(int(top), int(bottom)) + int(whole or 0)
    return -value if sign else value
