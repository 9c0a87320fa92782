"""Is a long answer one piece over and over? Such text is slow for a symbolic library and never right.

Score = 2 * sum of the common prefixes of neighbours among the sorted suffixes / (n (n + 1)); above 0.2 is repetitive.
Source: graders reference, 8.2 C.
"""

import itertools

MIN_CHARS = 128
_LIMIT = 0.2


def is_repetitive(text: str) -> bool:
    """Return whether a text of more than 128 characters is repetitive. Quadratic at worst: give at most 4,096."""
    count = len(text)
    if count <= MIN_CHARS:
        return False
    suffixes = sorted(text[start:] for start in range(count))
    shared = sum(_common(one, other) for one, other in itertools.pairwise(suffixes))
    return 2 * shared / (count * (count + 1)) > _LIMIT


def _common(one: str, other: str) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low
