"""Which texts of an answer may be its program, and which of them comes first (graders reference, 6.1, C1, C3 and C7).

Pure and linear. Whether a text can be the program is found out where it runs (`sandbox/candidate.py`), since text of a
model is compiled nowhere else.
"""

from rljob_workers.verifier.graders import fences

MIN_CHARS_COMPAT = 20
# Of more blocks the last count.
MAX_TEXTS = 16
_FENCE = "```"
_TAGS_COMPAT = ("python", "py", "cpp")


def programs_of(completion: str, *, compat: bool) -> tuple[str, ...]:
    """Return the texts that may be the program, the first that can be one counts; none if there is no block.

    Blocks that are tagged as Python, from the last one back, and then those without a tag. compat: one at most.
    """
    if compat:
        return _of_compat(completion)
    texts: dict[str, list[str]] = {fences.PYTHON: [], "": []}
    for block in fences.blocks(completion):
        tag, begins = fences.language(block.info)
        if tag in texts and (text := _text((begins, *block.lines))):
            texts[tag].append(text)
    return tuple([*reversed(texts[fences.PYTHON]), *reversed(texts[""])][:MAX_TEXTS])


def has_unsupported(completion: str) -> bool:
    """Return whether there is a block in a language that mode strict does not take."""
    tags = (fences.language(block.info)[0] for block in fences.blocks(completion))
    return any(tag not in ("", fences.PYTHON) for tag in tags)


def _text(lines: tuple[str, ...]) -> str:
    # The first line of a program is not indented, whatever the block is in.
    return "\n".join(fences.unindented(lines)).strip("\n").rstrip()


def _of_compat(completion: str) -> tuple[str, ...]:
    """Return the last closed block of 20 characters or more, as the original's pattern reads it.

    Whatever stands between two fences is a block, in any language; of its beginning `python`, `py` or `cpp` is cut off,
    so that `python3` leaves a `3` on a line of its own.
    """
    parts = completion.split(_FENCE)
    for part in reversed(parts[1 : len(parts) - 1 : 2]):
        tag = next((tag for tag in _TAGS_COMPAT if part[: len(tag)].lower() == tag), "")
        text = part[len(tag) :].strip()
        if len(text) >= MIN_CHARS_COMPAT:
            return (text,)
    return ()
