r"""Units: what a value counts. Two values are comparable if their units measure the same; then they convert exactly.

A unit is a factor and the powers of what it measures. A word that no table knows ("apples") is a thing of its own. Bare
"units" stand for any length, area or volume. Money never converts between currencies, nor temperatures at all.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from rljob_workers.verifier.graders.math.words import NUMBER_WORDS, word_set

_PREFIXES: Mapping[str, int | Fraction] = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "h": 10**2, "d": Fraction(1, 10), "c": Fraction(1, 100),
    "m": Fraction(1, 10**3), r"\mu": Fraction(1, 10**6), "n": Fraction(1, 10**9), "p": Fraction(1, 10**12),
}  # fmt: skip
_LONG_PREFIXES: Mapping[str, int | Fraction] = {
    "": 1, "kilo": 10**3, "mega": 10**6, "giga": 10**9, "tera": 10**12, "hecto": 10**2, "deci": Fraction(1, 10),
    "centi": Fraction(1, 100), "milli": Fraction(1, 10**3), "micro": Fraction(1, 10**6), "nano": Fraction(1, 10**9),
}  # fmt: skip
_BARE: Mapping[str, int | Fraction] = {"": 1}
# Symbol, names, what it measures, factor, whether metric prefixes apply.
_INCH = Fraction(254, 10_000)
_TABLE: tuple[tuple[str, str, str, Fraction | int, bool], ...] = (
    ("m", "meter metre 米", "m", 1, True), ("in", "inch inches 英寸", "m", _INCH, False),
    ("ft", "foot feet 英尺", "m", 12 * _INCH, False), ("yd", "yard 码", "m", 36 * _INCH, False),
    ("mi", "mile 英里", "m", 63360 * _INCH, False), ("", "cm 厘米", "m", Fraction(1, 100), False),
    ("", "毫米", "m", Fraction(1, 1000), False), ("", "千米 公里", "m", 1000, False),
    ("g", "gram gramme gm 克", "kg", Fraction(1, 1000), True), ("", "千克 公斤", "kg", 1, False),
    ("t", "tonne 吨", "kg", 1000, False), ("lb", "pound lbs 磅", "kg", Fraction(45359237, 10**8), False),
    ("oz", "ounce", "kg", Fraction(45359237, 16 * 10**8), False), ("", "ton", "ton", 1, False),
    ("s", "second sec 秒", "s", 1, True), ("min", "minute mins 分钟", "s", 60, False),
    ("h", "hour hr hrs 小时", "s", 3600, False), ("", "day 天", "s", 86400, False),
    ("", "week 周", "s", 7 * 86400, False), ("", "month 月", "month", 1, False),
    ("yr", "year 年 yrs", "month", 12, False), ("", "decade", "month", 120, False),
    ("", "century centuries", "month", 1200, False),
    ("L", "liter litre l 升", "m3", Fraction(1, 1000), True), ("", "毫升", "m3", Fraction(1, 10**6), False),
    ("gal", "gallon", "gallon", 1, False), ("qt", "quart", "gallon", Fraction(1, 4), False),
    ("pt", "pint", "gallon", Fraction(1, 8), False), ("", "cup", "cup", 1, False),
    ("ha", "hectare 公顷", "m2", 10_000, False), ("", "acre", "acre", 1, False),
    ("N", "newton", "N", 1, True), ("J", "joule", "J", 1, True), ("W", "watt", "W", 1, True),
    ("V", "volt", "V", 1, True), ("A", "ampere amp", "A", 1, True), ("Pa", "pascal", "Pa", 1, True),
    ("Hz", "hertz", "Hz", 1, True), ("K", "kelvin", "K", 1, True), ("C", "coulomb", "C", 1, True),
    ("F", "farad", "F", 1, True), ("mol", "mole", "mol", 1, True), ("cal", "calorie", "cal", 1, True),
    ("eV", "electronvolt", "eV", 1, True), ("ohm", "Ω", "ohm", 1, True), ("T", "tesla", "T", 1, True),
    ("B", "byte", "B", 1, True), ("", "bit", "bit", 1, False), ("atm", "atmosphere", "atm", 1, False),
    ("M", "molar", "M", 1, False), ("bar", "", "bar", 1, False),
    ("deg", "degree degs 度", "deg", 1, False), ("rad", "radian 弧度", "rad", 1, False),
    ("", "revolution rev", "revolution", 1, False),
    ("", "degC celsius 摄氏度", "degC", 1, False), ("", "degF fahrenheit", "degF", 1, False),
    ("", "dollar usd bucks 美元 US$", "$", 1, False), ("", "cent ¢ 美分", "$", Fraction(1, 100), False),
    ("", "euro eur euros €", "€", 1, False), ("", "gbp £ quid", "£", 1, False),
    ("", "pence penny", "£", Fraction(1, 100), False), ("", "rupee rs inr ₹", "₹", 1, False),
    ("", "yuan rmb cny 元 块 人民币", "cny", 1, False), ("", "yen jpy ¥ 日元", "¥", 1, False),
    ("", "percent pct", "%", 1, False), ("", "unit 单位", "unit", 1, False),
)  # fmt: skip
# Speeds and areas with one word.
_COMPOSED = {
    "mph": "mile per hour", "mpg": "mile per gallon", "kmph": "km per hour", "kph": "km per hour",
    "kmh": "km per hour", "cc": "cubic cm", "sqft": "square foot", "rpm": "revolution per minute",
    "平方厘米": "square cm", "平方米": "square m", "立方米": "cubic m", "立方厘米": "cubic cm", "平方千米": "square km",
}  # fmt: skip
_IRREGULAR = {
    "men": "man", "women": "woman", "children": "child", "people": "person", "persons": "person", "mice": "mouse",
    "feet": "foot", "dice": "die", "halves": "half", "leaves": "leaf", "geese": "goose", "teeth": "tooth",
    "vertices": "vertex", "matrices": "matrix",
}  # fmt: skip
_FILLERS = word_set("of the a an in total each full long old tall wide more left ways approximately about only")
# A quarter is a coin, a part of a year, or a part of a number that `forms` reads.
_NUMBERS = (NUMBER_WORDS - {"quarter", "quarters", "point"}) | word_set(
    "times plus minus over and or not than root roots power powers factorial mod modulo choose inverse reciprocal"
    " mil mille permille ppm to through versus vs"
)
_HAN_OPERATION = re.compile("的|次方|倍|分之|或|不|以上|以下|平方$|立方$|[减加乘除万亿千百]")
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cubed": 3, "cu": 3}
_PART = re.compile(
    r"([A-Za-z$€£¥₹¢\u4e00-\u9fff\\µΩ]{1,40})\.?\s{0,8}(?:\^\s{0,8}\{?\s{0,8}(-?[0-9])\s{0,8}\}?|([23])(?![0-9]))?"
)
_LEFT_OUT = re.compile(r"\\(?:text|mathrm|mbox|textbf|textit|textrm|operatorname|rm)(?![A-Za-z])|[{}]")
_SPACING = re.compile(r"\\[,;:! ]|~|\\quad|\\hspace")
_FRACTION = re.compile(r"\\[dt]?frac\s{0,4}\{([^{}]{1,60})\}\s{0,4}\{([^{}]{1,60})\}")


@dataclass(frozen=True, slots=True)
class Unit:
    """factor: of one unit in base units. powers: what is measured, sorted, with exponents."""

    factor: Fraction
    powers: tuple[tuple[str, int], ...]

    @property
    def is_any(self) -> bool:
        """Return whether it is a bare "unit", "square units" and the like."""
        return bool(self.powers) and all(name == "unit" for name, _ in self.powers)

    @property
    def is_angle(self) -> bool:
        """Return whether it is degrees or radians."""
        return self.powers in ((("deg", 1),), (("rad", 1),))


DEGREE = Unit(Fraction(1), (("deg", 1),))
PERCENT = Unit(Fraction(1), (("%", 1),))
NONE = Unit(Fraction(1), ())


def _entries() -> tuple[Mapping[str, Unit], Mapping[str, Unit]]:
    """Return symbols, whose letter case counts, and words."""
    symbols: dict[str, Unit] = {}
    words: dict[str, Unit] = {}
    for symbol, named, measures, factor, metric in _TABLE:
        powers = ((measures[0], int(measures[1])),) if measures in ("m2", "m3") else ((measures, 1),)
        if symbol:
            for prefix, size in (_PREFIXES if metric else _BARE).items():
                symbols.setdefault(prefix + symbol, Unit(Fraction(factor) * size, powers))
        for word in named.split():
            for prefix, size in (_LONG_PREFIXES if metric and len(word) > 2 else _BARE).items():
                words.setdefault(prefix + word, Unit(Fraction(factor) * size, powers))
    for symbol in ("kg", "cm", "mm", "km", "ml", "mL"):
        unit = symbols.get(symbol) or symbols[symbol.replace("ml", "mL")]
        words.setdefault(symbol.lower(), unit)
        symbols.setdefault(symbol, unit)
    return symbols, words


_SYMBOLS, _WORDS = _entries()


@functools.lru_cache(maxsize=4096)
def read(text: str) -> Unit | None:
    """Return the unit that a text of at most 120 characters names; None if it has signs that no unit has."""
    if len(text) > 120:
        return None
    text = _FRACTION.sub(r"\1/\2", _SPACING.sub(" ", text))
    text = _LEFT_OUT.sub("", text.replace("\\cdot", "*").replace("·", "*").replace("\\%", "%"))
    text = text.replace("²", "^2").replace("³", "^3").strip(" .")
    if text in ("%", "percent", "per cent"):
        return PERCENT
    for word, spelled in _COMPOSED.items():
        if text.lower().rstrip(".") == word:
            text = spelled
    return _product(text)


def is_known(word: str) -> bool:
    """Return whether a word is a unit of the tables, of more than one letter."""
    return len(word) > 1 and (word in _SYMBOLS or _word(word) is not None or word.lower() in _COMPOSED)


def _product(text: str) -> Unit | None:
    powers: dict[str, int] = {}
    factor, sign, pending, position = Fraction(1), 1, 1, 0
    has_unit = False
    last: tuple[Unit, int] | None = None
    while position < len(text):
        char = text[position]
        if char in " *-()":
            position += 1
            continue
        if char == "/":
            sign, position, last = -1, position + 1, None
            continue
        match = _PART.match(text, position)
        if not match:
            return None
        position = match.end()
        word = match[1]
        if word.lower() == "per" or word == "每":
            sign, last = -1, None
            continue
        if word.lower() in _POWERS:
            if word.lower() in ("squared", "cubed"):
                if not last:
                    return None
                _add(powers, last[0], last[1] * (_POWERS[word.lower()] - 1))
                factor *= last[0].factor ** (last[1] * (_POWERS[word.lower()] - 1))
            else:
                pending = _POWERS[word.lower()]
            continue
        if word.lower() in _FILLERS:
            has_unit = True
            continue
        exponent = int(match[2] or match[3] or 1) * sign * pending
        if _counts(word):
            return None
        unit = _of_word(word)
        _add(powers, unit, exponent)
        factor *= unit.factor**exponent
        last, pending, has_unit = (unit, exponent), 1, True
    if pending != 1:
        return None
    return Unit(factor, tuple(sorted((name, power) for name, power in powers.items() if power))) if has_unit else None


def _counts(word: str) -> bool:
    """Return whether a word is a number, a letter or an operation, which would change the value: no unit."""
    if len(word) == 1 and word.isascii() and word.isalpha():
        return word not in _SYMBOLS and _word(word) is None
    return word.lower() in _NUMBERS or _HAN_OPERATION.search(word) is not None


def _add(powers: dict[str, int], unit: Unit, exponent: int) -> None:
    for name, power in unit.powers:
        powers[name] = powers.get(name, 0) + power * exponent


def _of_word(word: str) -> Unit:
    if word in _SYMBOLS:
        return _SYMBOLS[word]
    return _word(word) or Unit(Fraction(1), (("thing " + _stem(word.lower()), 1),))


def _word(word: str) -> Unit | None:
    lower = word.lower()
    return _WORDS.get(lower) or _WORDS.get(_stem(lower))


def _stem(word: str) -> str:
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    for ending, stem in (("sses", "ss"), ("ches", "ch"), ("shes", "sh"), ("xes", "x"), ("ss", "ss"), ("s", "")):
        if word.endswith(ending) and len(word) > len(ending) + 1:
            return word[: len(word) - len(ending)] + stem
    return word
