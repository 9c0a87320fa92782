"""Normalisation A of the Oat rewards, in the style of Hendrycks' MATH (graders reference, 8.2). Pure, on capped text.

Correction O1 of mode strict: units follow M1 of areal-math.
"""

import re

from rljob_workers.verifier.graders import areal_text, latex_text

_ENCLOSING = re.compile(r"^\\text\{(.{1,4096}?)\}$", re.DOTALL)
_TEXT_AT_END = re.compile(r"\\text\{[^{}]{0,4096}\}$")


def unwrapped(text: str) -> str:
    r"""Return a trimmed text without an enclosing `\text{}`."""
    match = _ENCLOSING.match(text.strip())
    return match[1].strip() if match else text.strip()


def normalise(text: str, *, compat: bool) -> str:
    """Return the normal form that stage A compares."""
    text = unwrapped(text).replace("\n", "").replace(r"\!", "").replace("\\\\", "\\")
    text = latex_text.spellings(latex_text.matrices(text))
    text = _TEXT_AT_END.sub("", text).strip() or text
    text = areal_text.without_units(text) if compat else areal_text.without_unit_at_end(text)
    text = _without_marks(text)
    text = text.replace(" .", " 0.").replace("{.", "{0.")
    text = "0" + text if text.startswith(".") else text
    text = latex_text.without_short_left_side(text)
    text = re.sub(r"\\sqrt([^{])", r"\\sqrt{\1}", text).replace(" ", "")
    text = latex_text.short_fractions(text)
    return r"\frac{1}{2}" if text == "0.5" else latex_text.quotient(text)


def equal(ours: str, theirs: str, *, compat: bool) -> bool:
    """Return whether stage A finds two texts equal."""
    return normalise(ours, compat=compat) == normalise(theirs, compat=compat)


def _without_marks(text: str) -> str:
    text = text.replace(r"^{\circ}", "").replace(r"^\circ", "").replace(r"\$", "")
    return text.split(r"\text{ ", 1)[0].replace(r"\%", "").replace(r"%", "")
