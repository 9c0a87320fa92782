r"""Numbers in words, English and Chinese, and the scales that multiply a number in digits ("3 million", "5万").

A phrase is read as a whole or not at all.
"""

import re
from fractions import Fraction


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SMALL = {word: value for value, word in enumerate(_ONES)} | {
    word: 10 * value for value, word in enumerate(_TENS, start=2)
}
SCALES = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12,
    "hundreds": 10**2, "thousands": 10**3, "millions": 10**6, "billions": 10**9, "trillions": 10**12, "dozens": 12,
    "score": 20, "bn": 10**9, "mn": 10**6, "tn": 10**12, "lakh": 10**5, "lakhs": 10**5, "crore": 10**7, "crores": 10**7,
    "百": 10**2, "千": 10**3, "万": 10**4, "亿": 10**8, "百万": 10**6, "千万": 10**7, "十": 10, "百亿": 10**10,
}  # fmt: skip
_PARTS = {
    "half": 2, "halves": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8,
    "ninth": 9, "tenth": 10, "twelfth": 12, "sixteenth": 16, "twentieth": 20, "hundredth": 100, "thousandth": 1000,
}  # fmt: skip
_HAN_DIGITS = {char: value for value, char in enumerate("零一二三四五六七八九")} | {"\u3007": 0, "两": 2}
_HAN_INTEGER = r"[零〇一二两三四五六七八九十百千万亿]{1,20}"
_HAN = re.compile(
    rf"(负?)(?:(?P<half>一?半)|(?P<below>{_HAN_INTEGER})分之(?P<top>{_HAN_INTEGER})"
    rf"|(?P<whole>{_HAN_INTEGER})(?:点(?P<decimals>[零〇一二三四五六七八九]{{1,20}}))?)"
)
_MOST_WORDS = 24
NUMBER_WORDS = frozenset((*_SMALL, *SCALES, *_PARTS, *(part + "s" for part in _PARTS), "point", "minus", "negative"))


def value(text: str) -> tuple[Fraction, int] | None:
    """Return the number that a whole phrase names, and its decimal places (-1: none); None if it names none."""
    if len(text) > 200:
        return None
    han = leading_han(text.strip())
    if han is not None and han[2] == len(text.strip()):
        return han[:2]
    words = text.lower().replace("-", " ").replace(",", " ").split()
    if not words or len(words) > _MOST_WORDS or not set(words) <= NUMBER_WORDS | {"and", "a", "an", "of"}:
        return None
    sign = -1 if words[0] in ("minus", "negative") else 1
    words = words[1:] if sign < 0 else words
    number = _decimal(words) if "point" in words else _phrase(words)
    return (sign * number[0], number[1]) if number else None


def _phrase(words: list[str]) -> tuple[Fraction, int] | None:
    if not words:
        return None
    if words[:2] == ["half", "a"] and len(words) == 3 and words[2] in SCALES:
        return (Fraction(SCALES[words[2]], 2), -1)
    below = part(words[-1])
    if below is None:
        whole = _integer(words)
        return None if whole is None else (Fraction(whole), -1)
    # "two thirds", "half", "one and a half", "three and two fifths".
    before = words[:-1]
    joined = max((place for place, word in enumerate(before) if word == "and"), default=-1)
    top_words = [word for word in before[joined + 1 :] if word not in ("a", "an")]
    top = _integer(top_words) if top_words else 1
    whole = _integer(before[:joined]) if joined > 0 else 0
    if top is None or whole is None or joined == 0 or (joined > 0 and top >= below):
        return None
    return (whole + Fraction(top, below), -1)


def part(word: str) -> int | None:
    """Return 3 for "third" or "thirds", None for a word that names no part."""
    return _PARTS.get(word) or _PARTS.get(word.removesuffix("s"))


def _decimal(words: list[str]) -> tuple[Fraction, int] | None:
    place = words.index("point")
    whole = _integer(words[:place]) if place else 0
    scale = 1
    digits = words[place + 1 :]
    while digits and digits[-1] in SCALES:
        scale *= SCALES[digits.pop()]
    if whole is None or not digits or any(_SMALL.get(word, 10) > 9 for word in digits):
        return None
    decimals = "".join(str(_SMALL[word]) for word in digits)
    number = (whole + Fraction(int(decimals), 10 ** len(decimals))) * scale
    return (number, len(decimals) if scale == 1 else -1)


def _integer(words: list[str]) -> int | None:
    """Return what cardinal words say; each word must have its place: "six five" is not a number."""
    total = group = 0
    largest = 10**18
    room = 1000
    has_group = False
    for place, word in enumerate(words):
        if word == "and" and has_group and place + 1 < len(words):
            continue
        if word in ("a", "an") and place == 0 and len(words) > 1:
            group, has_group, room = 1, True, 1
            continue
        if word in _SMALL:
            number = _SMALL[word]
            if number >= room or (number == 0 and len(words) > 1):
                return None
            group += number
            room = 10 if number >= 20 else 1
        elif word == "hundred":
            if not 0 < group < 100:
                return None
            group, room = group * 100, 100
        elif word in SCALES:
            scale = SCALES[word]
            if not group or scale >= largest:
                return None
            total, group, largest, room = total + group * scale, 0, scale, 1000
        else:
            return None
        has_group = True
    return total + group if has_group else None


def leading_han(text: str) -> tuple[Fraction, int, int] | None:
    """Return the number in Chinese characters that a text begins with, its decimal places (-1: none), its length."""
    match = _HAN.match(text)
    if match is None:
        return None
    sign = -1 if match[1] else 1
    if match["half"]:
        return (sign * Fraction(1, 2), -1, match.end())
    if match["top"]:
        below = _han_integer(match["below"])
        return (sign * Fraction(_han_integer(match["top"]), below), -1, match.end()) if below else None
    decimals = "".join(str(_HAN_DIGITS[char]) for char in match["decimals"] or "")
    number = Fraction(_han_integer(match["whole"])) + Fraction(int(decimals or 0), 10 ** len(decimals))
    return (sign * number, len(decimals) if decimals else -1, match.end())


def _han_integer(text: str) -> int:
    if all(char in _HAN_DIGITS for char in text):
        return int("".join(str(_HAN_DIGITS[char]) for char in text))
    total = section = digit = 0
    for char in text:
        if char in _HAN_DIGITS:
            digit = _HAN_DIGITS[char]
        elif char in "十百千":
            section += (digit or 1) * {"十": 10, "百": 100, "千": 1000}[char]
            digit = 0
        else:
            total = (total + section + digit) * {"万": 10**4, "亿": 10**8}[char]
            section = digit = 0
    return total + section + digit
