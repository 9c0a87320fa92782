"""Outer brackets and the parts between top-level commas. Pure and linear; a bracket of any kind closes any other, so
that half-open intervals are one pair.
"""

_OPEN, _CLOSE = "([{", ")]}"


def outer(text: str) -> str:
    """Return the outer pair of a text, such as "(]", or "" if no single pair encloses all of it."""
    if len(text) < 2 or text[0] not in _OPEN or text[-1] not in _CLOSE:
        return ""
    depth = 0
    for index, char in enumerate(text):
        depth += (char in _OPEN) - (char in _CLOSE)
        if depth == 0:
            return text[0] + text[-1] if index == len(text) - 1 else ""
    return ""


def split(text: str, separator: str = ",") -> list[str]:
    """Return the trimmed parts between separators that are outside every bracket."""
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += (char in _OPEN) - (char in _CLOSE)
        if char == separator and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    return [*parts, text[start:].strip()]


def depth(text: str) -> int:
    """Return the greatest number of brackets that are open at once."""
    deepest = now = 0
    for char in text:
        now += (char in _OPEN) - (char in _CLOSE)
        deepest = max(deepest, now)
    return deepest
