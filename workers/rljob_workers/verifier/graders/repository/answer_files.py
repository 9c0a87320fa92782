"""Which files an answer writes into a repository. Pure and linear.

A file is a fenced block that says its path: after the language on the line of the fence, or in the first line of the
block, which stays a part of the file and counts if both say one.

    ```python pkg/sums.py            ```python
    def of_two(a, b): ...            # path: pkg/sums.py
    ```                              def of_two(a, b): ...
                                     ```

What a fence is: `code/blocks.py`. The last block of a path counts. A block without a path is not a file; nor is one
whose path no file can have, or which a tool would read unasked: such a block is passed over, so that nothing is won by
writing it.
"""

import re
from collections.abc import Mapping

from rljob_workers.verifier.graders.code import blocks
from rljob_workers.verifier.graders.repository import paths

MAX_FILES = 64
MAX_BYTES = 256 << 10
_FIRST_LINE = re.compile(r"#[ \t]{0,8}path:[ \t]{0,8}(\S+)[ \t]{0,8}\Z")
# `python title="pkg/sums.py"`, `python 3 pkg/sums.py`, `python:pkg/sums.py`, `pkg/sums.py`.
_ATTRIBUTE = re.compile(r"\b(?:file|filename|name|path|title)=[\"']?([^\"'\s}]+)")
_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+)*")


class UnusableError(Exception):
    """The answer writes more than it may, or a file where it writes a folder."""


def files_of(completion: str) -> dict[str, str]:
    """Return texts by path, none if the answer writes no file. Raises UnusableError."""
    files: dict[str, str] = {}
    for block in blocks.blocks(completion):
        path = path_of(block)
        if path and not paths.problem(path) and not paths.is_configuration(path):
            files[path] = "".join(f"{line}\n" for line in block.lines)
    if len(files) > MAX_FILES:
        raise UnusableError(f"{len(files)} files, but an answer may write {MAX_FILES}")
    size = sum(len(text.encode("utf-8", errors="replace")) for text in files.values())
    if size > MAX_BYTES:
        raise UnusableError(f"{size} bytes of files, but an answer may write {MAX_BYTES}")
    return files


def merged(files: Mapping[str, str], written: Mapping[str, str], restored: Mapping[str, str]) -> dict[str, str]:
    """Return a repository's files, the answer's over them, and the tests over both.

    Raises UnusableError if the answer writes a file where there is a folder, or the other way round.
    """
    whole = {**files, **written, **restored}
    if paths.clash(whole):
        raise UnusableError("a file where there is a folder, or a folder where there is a file")
    return whole


def path_of(block: blocks.Block) -> str:
    """Return the path that a block says, an empty text if it says none."""
    match = (_FIRST_LINE.match(block.lines[0]) if block.lines else None) or _ATTRIBUTE.search(block.info)
    if match:
        return match.group(1)
    words = [word for word in block.info.split() if not _VERSION.fullmatch(word)]
    if len(words) > 1:
        return words[1]
    alone = words[0].rpartition(":")[2] if words else ""
    return alone if alone.endswith(".py") or "/" in alone else ""
