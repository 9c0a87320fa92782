"""English number phrases to digits, as AReaL reads them: "two hundred and five" is 205. Pure and linear."""

from collections.abc import Sequence

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
