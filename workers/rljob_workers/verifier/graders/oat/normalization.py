"""Normal forms of the Oat rewards (docs/design/graders.md#s-8-2). Pure, on capped text.

Stage A (`normalise_text`): in the style of Hendrycks' MATH. Stage B (`normalise`): LaTeX to plain, lower-case text.
Correction O1 of mode strict: the unit words are whole words only, and follow M1 of areal-math. The sign of a mixed
number is that of the whole."""

import re
from fractions import Fraction

from rljob_workers.verifier.graders.areal import normalization

_ENCLOSING = re.compile(r"^\\text\{(.{1,4096}?)\}$", re.DOTALL)
_TEXT_AT_END = re.compile(r"\\text\{[^{}]{0,4096}\}$")


def unwrapped(text: str) -> str:
    r"""Return a trimmed text without an enclosing `\text{}`."""
    match = _ENCLOSING.match(text.strip())
    return match[1].strip() if match else text.strip()


def normalise_text(text: str, *, compat: bool) -> str:
    """Return the normal form that stage A compares."""
    text = unwrapped(text).replace("\n", "").replace(r"\!", "").replace("\\\\", "\\")
    text = normalization.spellings(normalization.matrices(text))
    text = _TEXT_AT_END.sub("", text).strip() or text
    text = normalization.without_units(text) if compat else normalization.without_unit_at_end(text)
    text = _without_marks(text)
    text = text.replace(" .", " 0.").replace("{.", "{0.")
    text = "0" + text if text.startswith(".") else text
    text = normalization.without_short_left_side(text)
    text = re.sub(r"\\sqrt([^{])", r"\\sqrt{\1}", text).replace(" ", "")
    text = normalization.short_fractions(text)
    return r"\frac{1}{2}" if text == "0.5" else normalization.quotient(text)


def equal_text(ours: str, theirs: str, *, compat: bool) -> bool:
    """Return whether stage A finds two texts equal."""
    return normalise_text(ours, compat=compat) == normalise_text(theirs, compat=compat)


def _without_marks(text: str) -> str:
    text = text.replace(r"^{\circ}", "").replace(r"^\circ", "").replace(r"\$", "")
    return text.split(r"\text{ ", 1)[0].replace(r"\%", "").replace(r"%", "")


_WORDS = (
    "degree", "cm", "centimeter", "meter", "mile", "second", "minute", "hour", "day", "week", "month", "year", "foot",
    "feet", "inch", "yard",
)  # fmt: skip
_POWER = r" {0,8}(?:\^ {0,8}\{?[0-9]{1,3}\}?)?"
_UNITS_COMPAT = re.compile(rf"(?:{'|'.join(_WORDS)})(?:es)?s?{_POWER}")
_UNITS = re.compile(rf"(?<=[0-9)\]}}])(?:\s|\\[,;: ]){{0,8}}(?:{'|'.join(_WORDS)})(?:es)?s?(?![A-Za-z]){_POWER}$")
_SCALES = (("million", "*10^6"), ("billion", "*10^9"), ("trillion", "*10^12"))
_FLOAT = re.compile(r"[-+]?[0-9]{1,1000}\.[0-9]{0,1000}|[-+]?\.[0-9]{1,1000}")
_MIXED = re.compile(r"([0-9]) {1,64}([0-9])")
_SIGNED_MIXED = re.compile(r"(?<![0-9A-Za-z)])-([0-9]{1,1000}) {1,64}(?=[0-9]{1,1000}/)")
_FRACTION = re.compile(r"\\frac\{([^{}]{0,4096})\}\{([^{}]{0,4096})\}")
_ROOT = re.compile(r"\\sqrt\{([^{}]{0,4096})\}")
_NTH_ROOT = re.compile(r"\\sqrt\[([^\[\]{}]{0,64})\]\{([^{}]{0,4096})\}")
_FONT = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|mbox|operatorname)\{([^{}]{0,4096})\}")
_SHORT_ROOT = re.compile(r"\\sqrt\s{0,8}([0-9A-Za-z])")
_THOUSANDS = re.compile(r"(?<![0-9])([0-9]{1,3}),([0-9]{3})(?![0-9])")
_CLOSE_TO_INTEGER = Fraction(1, 10**7)
_MOST_NESTED = 64
_PLAIN = (
    (r"\ldots", "..."), (r"\dots", "..."), (r"\qquad", " "), (r"\quad", " "),
    (r"\pi", "pi"), (r"\infty", "inf"), (r"\cup", "U"), (r"\cdot", "*"), (r"\times", "*"), ("\u221e", "inf"),
    ("\u222a", "U"), ("\u03c0", "pi"), ("\u00b7", "*"), ("\u00d7", "*"), ("\u221a", "sqrt"),
)  # fmt: skip


def normalise(text: str, *, compat: bool) -> str:
    """Return the normal form that stage B compares and splits."""
    text = unwrapped(text).replace(r"\%", "%").replace(r"\$", "$").replace("$", "").replace("%", "")
    text = text.replace(" or ", " , ").replace(" and ", " , ")
    for word, power in _SCALES:
        text = text.replace(word, power)
    text = _UNITS_COMPAT.sub("", text) if compat else normalization.without_unit_at_end(_UNITS.sub("", text.strip()))
    text = text.replace(r"^{\circ}", "").replace(r"^\circ", "").strip()
    if len(text) > 1 and text[0] == "{" and text[-1] == "}":
        text = text[1:-1]
    text = _integer(text.replace(r"\,", "").replace(r"\!", ""))
    text = plain(text) if "\\" in text else text
    text = text.replace("- ", "-")
    # The sign of a mixed number is that of both its parts.
    text = text if compat else _SIGNED_MIXED.sub(r"-\1-", text)
    text = _MIXED.sub(r"\1+\2", text).replace(" ", "").replace("{", "").replace("}", "").lower()
    return without_thousands(_integer(text))


def plain(text: str) -> str:
    """Return LaTeX as plain text: fractions, roots, pi, infinity, unions and products."""
    text = _FONT.sub(r"\1", normalization.spellings(text))
    text = _SHORT_ROOT.sub(r"\\sqrt{\1}", normalization.short_fractions(text))
    # A whole number in front of a fraction is the integer part of a mixed number.
    text = text.replace(r"\frac", r" \frac")
    for _ in range(_MOST_NESTED):
        before = text
        text = _ROOT.sub(r"sqrt(\1)", _NTH_ROOT.sub(r"(\2)^(1/(\1))", text))
        text = _FRACTION.sub(_quotient, text)
        if text == before:
            break
    for old, new in _PLAIN:
        text = text.replace(old, new)
    return text.replace("\\", "").strip()


def without_thousands(text: str) -> str:
    """Return the text without commas between groups of three digits, unless it is a list in brackets."""
    while not text.startswith(("(", "[")):
        shorter = _THOUSANDS.sub(r"\1\2", text)
        if shorter == text:
            break
        text = shorter
    return text


def _quotient(match: re.Match[str]) -> str:
    top, bottom = (part if part.isalnum() else f"({part})" for part in match.groups())
    return f"{top}/{bottom}"


def _integer(text: str) -> str:
    if not _FLOAT.fullmatch(text):
        return text
    value = Fraction(text.rstrip("."))
    return str(round(value)) if abs(value - round(value)) <= _CLOSE_TO_INTEGER else text
