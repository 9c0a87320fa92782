"""AReaL's normal form of an answer (docs/design/graders.md#s-5-2): LaTeX, number words, and units as M1 takes them.
Pure, on capped text. The Oat rewards use the parts that both have.
"""

import functools
import re
from collections.abc import Sequence

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
    """Return step 1 of docs/design/graders.md#s-5-2."""
    text = text.strip().replace("\n", "").rstrip(".").replace(r"\!", "")
    return spellings(matrices(text)).replace(r"\{", "{").replace(r"\}", "}")


def without_short_left_side(text: str) -> str:
    """Return the right side of the only "=" if at most two characters are before it."""
    left, equals, right = text.partition("=")
    return right.strip() if equals and "=" not in right and len(left.strip()) <= _MOST_LEFT else text


def short_fractions(text: str) -> str:
    r"""Return the text with `\frac12` and `\frac1{72}` in full."""
    return _SHORT_FRACTION.sub(lambda match: rf"\frac{{{match[1] or match[2]}}}{{{match[3] or match[4]}}}", text)


def quotient(text: str) -> str:
    """Return integer/integer as a fraction, any other text unchanged."""
    match = _QUOTIENT.fullmatch(text)
    return rf"\frac{{{match[1]}}}{{{match[2]}}}" if match else text


_ONES_TEXT = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS_TEXT = "twenty thirty forty fifty sixty seventy eighty ninety"
_ONES, _TENS = _ONES_TEXT.split(), _TENS_TEXT.split()
_SMALL = {word: value for value, word in enumerate(_ONES)} | {
    word: 10 * value for value, word in enumerate(_TENS, start=2)
}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9}
_NUMBER_WORDS = frozenset((*_SMALL, *_SCALES, "hundred", "point"))
_MOST_WORDS = 64


def to_digits(text: str) -> str:
    """Return the number that the words of `text` name, other words left out, or `text` unchanged if they name none."""
    words = text.lower().replace("-", " ").split()
    numbers = [word for word in words if word in _NUMBER_WORDS]
    if not numbers or len(words) > _MOST_WORDS:
        return text
    integer, has_point, decimals = _split(numbers)
    fraction = _digits(decimals)
    value = _integer(integer)
    if value is None or fraction is None or has_point == (not fraction):
        return text
    return f"{value}.{fraction}" if has_point else str(value)


def _split(words: Sequence[str]) -> tuple[Sequence[str], bool, Sequence[str]]:
    if "point" not in words:
        return words, False, ()
    place = words.index("point")
    return words[:place], True, words[place + 1 :]


def _digits(words: Sequence[str]) -> str | None:
    if any(_SMALL.get(word, 10) > 9 for word in words):
        return None
    return "".join(str(_SMALL[word]) for word in words)


def _integer(words: Sequence[str]) -> int | None:
    total = group = 0
    for word in words:
        if word in _SMALL:
            group += _SMALL[word]
        elif word == "hundred":
            group = max(group, 1) * 100
        elif word in _SCALES:
            total += max(group, 1) * _SCALES[word]
            group = 0
        else:
            return None
    return total + group


_WORDS = (
    "east|degree|mph|kmph|ft|m sqaure| m east|sq m|deg|mile|q .|monkey|prime|ratio|profit of rs|rd|o|gm|"
    "p . m|lb|tile|per|dm|lt|gain|ab|way|west|a .|b .|c .|d .|e .|f .|g .|"
    "h .|t|a|h|no change|men|soldier|pie|bc|excess|st|inches|noon|percent|by|gal|kmh|c|acre|rise|a . m|"
    "th|π r 2|sq|mark|l|toy|coin|sq . m|gallon|° f|profit|minw|yr|women|feet|"
    "am|pm|hr|cu cm|square|v â € ™|are|rupee|rounds|cubic|cc|mtr|s|ohm|number|kmph|day|hour|minute|min|"
    "second|man|woman|sec|cube|mt|sq inch|mp|∏ cm ³|hectare|more|sec|unit|"
    "cu . m|cm 2|rs .|rs|kg|g|month|km|m|cm|mm|apple|liter|loss|yard|pure|year|increase|decrease|d|less|"
    "Surface|litre|pi sq m|s .|metre|meter|inch"
)
SINGULAR = tuple(_WORDS.split("|"))
UNITS = (*SINGULAR, *(word + "s" for word in SINGULAR))
_WORD = re.compile(r"\w+")
# Of each unit what is there before its pattern is tried: its words alone, and the parts between its dots, as a dot is
# any character to the original, which uses each unit as a pattern.
_SCREENED_UNITS = tuple(
    (unit, frozenset() if "." in unit else frozenset(_WORD.findall(unit)), tuple(filter(None, unit.split("."))))
    for unit in UNITS
)


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
    text = _UNIT_WITH_POWER.sub("", layout(text)).rstrip("_\\")
    text = without_units(_TEXT_AT_END.sub("", text).strip() or text)
    text = to_digits(_without_marks(text))
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
    return _fractions(without_short_left_side(_number_form(text)))


def without_units(text: str) -> str:
    """Return the text without unit words wherever they are alone, as the original deletes them."""
    # No deletion joins two words: what is not among them now never is.
    words = frozenset(_WORD.findall(text))
    units = [(unit, parts) for unit, alone, parts in _SCREENED_UNITS if alone <= words]
    for _ in range(_PASSES):
        for unit, parts in units:
            if all(part in text for part in parts):
                text = _unit_pattern(unit).sub(r"\1\2", text) or text
    return text


@functools.cache
def _unit_pattern(unit: str) -> re.Pattern[str]:
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
    return sorted(set(UNITS), key=len, reverse=True)


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
    return quotient(short_fractions(text))
