"""Text that others wrote, made safe for a terminal. Pure.

A policy can write any text, and a terminal acts on some: escape sequences move the cursor or change the title,
direction marks reorder what is read, a line feed fakes a line of ours. Such characters are shown as their escapes.
"""

import unicodedata

_SPACES = "Zs"


def line(text: str) -> str:
    r"""Return `text` as one line: control, format and invisible characters as escapes such as `\x1b` or `\u202e`."""
    return text if text.isprintable() else "".join(map(_visible, text))


def block(text: str) -> list[str]:
    """Return the lines of `text`, tabs kept and all else as in `line`."""
    return ["\t".join(map(line, text_line.split("\t"))) for text_line in text.split("\n")]


def _visible(char: str) -> str:
    if char.isprintable() or unicodedata.category(char) == _SPACES:
        return char
    return repr(char)[1:-1]
