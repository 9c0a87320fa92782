"""Which program of a completion counts (graders reference, 6.1, C1 and C3). Pure and linear.

A block stands between two fences of three backticks. Its tag is the word right after the first one, if that word ends
the line or is a language that counts; a word alone on the line that names another language makes the block another's.
"""

import dataclasses
import re

FENCE = "```"
MIN_CHARS_COMPAT = 20
_TAG = re.compile(r"[\w+#.-]{1,32}")
_PYTHON = ("python", "py")
_CPP = "cpp"


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its tag in lower case, empty without one, and its trimmed text."""

    tag: str
    text: str


def program_of(completion: str, *, compat: bool) -> str | None:
    """Return the last block that counts, or None. compat also takes C++, and nothing under 20 characters."""
    counted = ("", *_PYTHON, _CPP) if compat else ("", *_PYTHON)
    taken = [block.text for block in blocks(completion) if block.tag in counted]
    return next((text for text in reversed(taken) if len(text) >= (MIN_CHARS_COMPAT if compat else 1)), None)


def has_unsupported(completion: str) -> bool:
    """Return whether there is a block in a language that mode strict does not take."""
    return any(block.tag == _CPP for block in blocks(completion))


def blocks(completion: str) -> list[Block]:
    """Return the closed blocks in order."""
    parts = completion.split(FENCE)
    # Texts outside and inside alternate; what follows the last fence is outside, or an unclosed block.
    return [_block(part) for part in parts[1 : len(parts) - 1 : 2]]


def _block(part: str) -> Block:
    match = _TAG.match(part)
    if match is None:
        return Block("", part.strip())
    tag, rest = match.group().lower(), part[match.end() :]
    known = tag in (*_PYTHON, _CPP) and rest[:1].isspace()
    alone = rest.lstrip(" \t\r").startswith("\n")
    return Block(tag, rest.strip()) if known or alone else Block("", part.strip())
