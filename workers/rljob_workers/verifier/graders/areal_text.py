"""AReaL's normal spelling of an answer (graders reference, 5.2), and units as M1 takes them. Pure, on capped text."""

import functools
import re

from rljob_workers.verifier.graders import latex_text, number_words, unit_words

_PASSES = 2
_ASSIGNMENTS = ("x=", "y=", "z=", r"x\in", r"y\in", r"z\in", r"x\to", r"y\to", r"z\to")
_TEXT_AT_END = re.compile(r"\\text\{[^{}]{0,4096}\}$")
_UNIT_WITH_POWER = re.compile(r"(?<=[0-9)\]}])\s{0,64}\\text\{[^{}]{0,256}\}\s{0,8}\^\s{0,8}(?:[0-9]|\{[0-9]\})$")
_TEXT = re.compile(r"\\text\{([^{}]{0,4096})\}")
_MBOX = re.compile(r"\\mbox\{[^{}]{0,4096}\}")
_TRAILING_ZEROS = re.compile(r"(?<=[0-9])\.0{0,4096}(?![0-9])")
_SPACE = r"(?:\s|\\[,;: ]|~){1,64}"
_POWER = r"(?:\s{0,8}\^\s{0,8}\{?[23]\}?)?"
_SETTER = r"\\(?:text|mathrm|mbox)\{"


def compat(text: str) -> str:
    """Return the original's normal form."""
    text = _UNIT_WITH_POWER.sub("", latex_text.layout(text)).rstrip("_\\")
    text = without_units(_TEXT_AT_END.sub("", text).strip() or text)
    text = number_words.to_digits(_without_marks(text))
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
