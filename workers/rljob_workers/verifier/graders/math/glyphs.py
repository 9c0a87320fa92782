"""Unicode to the ASCII and LaTeX that the other modules read. Pure and linear.

What looks the same is the same: minus signs, full-width forms, superscripts, roots, degrees, fractions. A character
that has no place in a formula stays, and the text is then no formula.
"""

# ruff: noqa: RUF001  # signs that look alike are what this is about

import re
import unicodedata

_MINUS = "\u2212\u2010\u2011\u2012\u2013\ufe63\uff0d\u02d7\u2796"
_DELETED = "\u200b\u200c\u200d\u2060\ufeff\u00ad\u200e\u200f"
_NARROW_SPACES = "\u2009\u202f\u200a\u2006\u2008"
_SPACES = "\u00a0\u2002\u2003\u2004\u2005\u2007\u3000\u205f"
_GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "ζ": "zeta", "η": "eta", "θ": "theta",
    "ι": "iota", "κ": "kappa", "λ": "lambda", "μ": "mu", "ν": "nu", "ξ": "xi", "ρ": "rho", "σ": "sigma", "τ": "tau",
    "φ": "phi", "χ": "chi", "ψ": "psi", "ω": "omega", "π": "pi", "Δ": "Delta", "Σ": "Sigma", "Ω": "Omega",
    "Γ": "Gamma", "Θ": "Theta", "Λ": "Lambda", "Φ": "Phi", "Π": "Pi", "Ψ": "Psi",
}  # fmt: skip
_SIGNS = {
    "×": r"\times ", "✕": r"\times ", "⨯": r"\times ", "÷": "/", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ",
    "∗": "*", "⁄": "/", "∕": "/", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ",
    "≠": r"\ne ", "≈": r"\approx ", "≃": r"\approx ", "±": r"\pm ", "∓": r"\mp ", "∪": r"\cup ", "∩": r"\cap ",
    "∈": r"\in ", "∅": r"\emptyset ", "°": r"^\circ ", "º": r"^\circ ", "˚": r"^\circ ", "℃": r"^\circ C",
    "℉": r"^\circ F", "′": "'", "’": "'", "‘": "'", "“": '"', "”": '"', "…": r"\ldots ", "⋯": r"\ldots ",
    "→": r"\to ", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}",
    "ℂ": r"\mathbb{C}", "⟨": r"\langle ", "⟩": r"\rangle ", "〈": r"\langle ", "〉": r"\rangle ", "⌊": r"\lfloor ",
    "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "‖": "|", "∣": "|", "²": "^{2}", "∠": r"\angle ",
    "。": ". ", "，": ", ", "、": ", ", "；": "; ", "：": ": ", "！": "!", "（": "(", "）": ")", "【": "[", "】": "]",
    "﹪": "%", "％": "%", "﹣": "-", "−": "-", "＝": "=", "﹦": "=", "￥": "¥", "＄": "$", "≡": r"\equiv ",
}  # fmt: skip
_TABLE: dict[int, str] = {
    **{ord(char): "-" for char in _MINUS},
    **{ord(char): "" for char in _DELETED},
    **{ord(char): r"\," for char in _NARROW_SPACES},
    **{ord(char): " " for char in _SPACES},
    **{ord(char): rf"\{name} " for char, name in _GREEK.items()},
    **{ord(char): text for char, text in _SIGNS.items()},
}
_FULL_WIDTH = range(0xFF01, 0xFF5F)
_STYLED = range(0x1D400, 0x1D800)
_SUPER = {
    **dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789", strict=True)),
    "⁺": "+",
    "⁻": "-",
    "⁽": "(",
    "⁾": ")",
    "ⁿ": "n",
    "ⁱ": "i",
}
_SUB = {**dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True)), "₊": "+", "₋": "-"}
_SUPER_RUN = re.compile("[" + re.escape("".join(_SUPER)) + "]{1,64}")
_SUB_RUN = re.compile("[" + re.escape("".join(_SUB)) + "]{1,64}")
# A radical sign reaches over the digits or the letter behind it, or over a bracket.
_RADICAL = re.compile(r"([√∛∜])[ ]{0,4}([0-9]{1,64}(?:\.[0-9]{1,64})?|[A-Za-z]|(?=[({\\]))")
_DEGREE = {"√": r"\sqrt", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]"}


def plain(text: str) -> str:
    """Return the text in ASCII and LaTeX as far as its characters have a place there."""
    if text.isascii():
        return text
    text = _SUPER_RUN.sub(lambda run: "^{" + "".join(_SUPER[char] for char in run.group()) + "}", text)
    text = _SUB_RUN.sub(lambda run: "_{" + "".join(_SUB[char] for char in run.group()) + "}", text)
    text = _RADICAL.sub(lambda match: _DEGREE[match[1]] + (f"{{{match[2]}}}" if match[2] else ""), text)
    return "".join(_one(char) for char in text)


def _one(char: str) -> str:
    if char.isascii():
        return char
    code = ord(char)
    if code in _TABLE:
        return _TABLE[code]
    if code in _FULL_WIDTH:
        return chr(code - 0xFEE0)
    if code in _STYLED:
        return unicodedata.normalize("NFKC", char)
    if unicodedata.category(char) == "No" and unicodedata.decomposition(char).startswith("<fraction>"):
        top, _, bottom = unicodedata.normalize("NFKC", char).partition("\u2044")
        return rf"\frac{{{top}}}{{{bottom}}}" if bottom else char
    return char
