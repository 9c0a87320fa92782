"""AReaL's normal spelling of an answer (graders reference, 5.2), compat and strict. Pure, on capped text.

strict corrects: M1 units only where a unit can stand; M2 a percent sign stays; M5 a short left side goes only at the
very start and if the other side has no relation; M8 whole words; M9 mixed numbers.
"""

import functools
import re

from rljob_workers.verifier.graders import latex_text, number_words, unit_words

_PASSES = 2
_ASSIGNMENTS = ("x=", "y=", "z=", r"x\in", r"y\in", r"z\in", r"x\to", r"y\to", r"z\to")
_RELATION = re.compile(r"[=<>]|\\(?:in|to|ne|le|ge|lt|gt)(?![A-Za-z])")
_ASSIGNMENT_AT_START = re.compile(r"^[xyz]\s{0,64}(?:=|\\(?:in|to)(?![A-Za-z]))")
_TEXT_AT_END = re.compile(r"\\text\{[^{}]{0,4096}\}$")
_TEXT = re.compile(r"\\text\{([^{}]{0,4096})\}")
_MBOX = re.compile(r"\\mbox\{[^{}]{0,4096}\}")
_TRAILING_ZEROS = re.compile(r"(?<=[0-9])\.0{0,4096}(?![0-9])")
_SPACE = r"(?:\s|\\[,;: ]|~){1,64}"
_POWER = r"(?:\s{0,8}\^\s{0,8}\{?[23]\}?)?"
_SETTER = r"\\(?:text|mathrm|mbox)\{"
_MIXED = re.compile(r"(?<![\w.}^)])([0-9]{1,1000})(?:\\frac\{([0-9]{1,1000})\}\{([0-9]{1,1000})\})")
_SPACED_MIXED = re.compile(r"(?<![\w.])([0-9]{1,1000}) {1,64}([0-9]{1,1000})/([0-9]{1,1000})(?![0-9])")


def compat(text: str) -> str:
    """Return the original's normal form."""
    text = latex_text.layout(text)
    text = without_units(_TEXT_AT_END.sub("", text).strip() or text)
    text = number_words.to_digits(_without_marks(text), whole=False)
    text = _TEXT.sub(r"\1", text)
    for assignment in _ASSIGNMENTS:
        text = text.replace(assignment, "")
    text = _named_sets(text).replace(r"\%", "").replace("%", "")
    text = _padded(text).replace("infinity", r"\infty")
    if r"\infty" not in text:
        text = text.replace("inf", r"\infty")
    text = _MBOX.sub("", text.replace("and", "").replace(r"\mathbf", ""))
    if "j" in text and "i" not in text:
        text = text.replace("j", "i")
    return _fractions(latex_text.without_short_left_side(_number_form(text)))


def strict(text: str, other: str) -> str:
    """Return the corrected normal form of an answer that will be compared with the raw text `other`."""
    text = latex_text.layout(text)
    text = _TEXT_AT_END.sub("", text).strip() or text
    text = _without_marks(without_unit_at_end(text))
    text = _TEXT.sub(r"\1", number_words.to_digits(text, whole=True))
    text = text if _RELATION.search(other) else _without_relation(text)
    text = _padded(_named_sets(text).replace(r"\%", "%"))
    text = re.sub(r"(?<![\\A-Za-z])(?:infinity|inf)(?![A-Za-z])", r"\\infty", text)
    text = re.sub(r"(?<![\\A-Za-z])and(?![A-Za-z])", "", text)
    text = _MBOX.sub("", text.replace(r"\mathbf", ""))
    if "j" in text and "i" not in text and "i" in other:
        text = text.replace("j", "i")
    text = _SPACED_MIXED.sub(_mixed, _number_form(text))
    return _MIXED.sub(_mixed, _fractions(text))


def without_units(text: str) -> str:
    """Return the text without unit words wherever they stand alone, as the original deletes them."""
    for _ in range(_PASSES):
        for unit in unit_words.UNITS:
            # A dot is any character: what stands between dots must be there before a pattern is tried.
            if all(part in text for part in unit.split(".")):
                text = _unit_pattern(unit).sub(r"\1\2", text) or text
    return text


@functools.cache
def _unit_pattern(unit: str) -> re.Pattern[str]:
    # The original uses each word as a pattern: its dots match any character.
    return re.compile(rf"(^|\W){unit}($|\W)")


@functools.cache
def _unit_at_end() -> re.Pattern[str]:
    bare = "|".join(re.escape(unit.strip()) for unit in _longest_first() if len(unit.strip(" .")) > 1)
    every = "|".join(re.escape(unit.strip()) for unit in _longest_first())
    value = r"(?<=[0-9)\]}])"
    return re.compile(
        rf"{value}(?:{_SPACE}(?:{bare}){_POWER}|(?:{_SPACE})?{_SETTER}\s{{0,64}}(?:{every}){_POWER}\s{{0,64}}\}}{_POWER})\.?$"
    )


def _longest_first() -> list[str]:
    return sorted(set(unit_words.UNITS), key=len, reverse=True)


def without_unit_at_end(text: str) -> str:
    """Return the text without a unit that follows a complete value at its end (M1)."""
    return _unit_at_end().sub("", text).strip() or text


def _without_marks(text: str) -> str:
    for mark in (r"^{\circ}", r"^\circ", r"\$", "$", r"\(", r"\)"):
        text = text.replace(mark, "")
    return text.strip()


def _without_relation(text: str) -> str:
    return latex_text.without_short_left_side(_ASSIGNMENT_AT_START.sub("", text, count=1))


def _named_sets(text: str) -> str:
    return text.replace(r"\emptyset", "{}").replace(r"(-\infty,\infty)", r"\mathbb{R}")


def _padded(text: str) -> str:
    return text.replace(" .", " 0.").replace("{.", "{0.")


def _number_form(text: str) -> str:
    text = _TRAILING_ZEROS.sub("", text)
    return "0" + text if text.startswith(".") else text


def _fractions(text: str) -> str:
    text = re.sub(r"\\sqrt(\w{1,4096})", r"\\sqrt{\1}", text).replace(" ", "")
    return latex_text.quotient(latex_text.short_fractions(text))


def _mixed(match: re.Match[str]) -> str:
    whole, top, bottom = match.groups()
    proper = 0 < int(top) < int(bottom)
    return rf"({whole}+\frac{{{top}}}{{{bottom}}})" if proper else match.group()
