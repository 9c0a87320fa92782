"""Spelling steps that the normalisers of Hendrycks' MATH lineage share. Pure, on capped text."""

import re

_ARRAY = re.compile(r"\\begin\{array\}\{[^{}]{0,64}\}")
_SHORT_FRACTION = re.compile(r"\\frac(?:([0-9A-Za-z])|\{([^{}]{1,4096})\})\s{0,8}(?:([0-9A-Za-z])|\{([^{}]{1,4096})\})")
_QUOTIENT = re.compile(r"(-?[0-9]{1,1000})/(-?[0-9]{1,1000})")
_MOST_LEFT = 2


def matrices(text: str) -> str:
    """Return the text with every matrix environment as pmatrix."""
    text = _ARRAY.sub(r"\\begin{pmatrix}", text).replace(r"\end{array}", r"\end{pmatrix}")
    return text.replace("bmatrix", "pmatrix")


def spellings(text: str) -> str:
    """Return the text with one spelling of fractions and relations, without the sizes of brackets."""
    for old, new in (("tfrac", "frac"), ("dfrac", "frac"), (r"\neq", r"\ne"), (r"\leq", r"\le"), (r"\geq", r"\ge")):
        text = text.replace(old, new)
    # The arrows begin with the same letters as the bracket sizes.
    return re.sub(r"\\(?:left|right)(?![a-z])", "", text)


def layout(text: str) -> str:
    """Return step 1 of the graders reference, 5.2."""
    text = text.strip().replace("\n", "").rstrip(".").replace(r"\!", "")
    return spellings(matrices(text)).replace(r"\{", "{").replace(r"\}", "}")


def without_short_left_side(text: str) -> str:
    """Return the right side of the only "=" if at most two characters stand before it."""
    left, equals, right = text.partition("=")
    return right.strip() if equals and "=" not in right and len(left.strip()) <= _MOST_LEFT else text


def short_fractions(text: str) -> str:
    r"""Return the text with `\frac12` and `\frac1{72}` in full."""
    return _SHORT_FRACTION.sub(lambda match: rf"\frac{{{match[1] or match[2]}}}{{{match[3] or match[4]}}}", text)


def quotient(text: str) -> str:
    """Return integer/integer as a fraction, any other text unchanged."""
    match = _QUOTIENT.fullmatch(text)
    return rf"\frac{{{match[1]}}}{{{match[2]}}}" if match else text
