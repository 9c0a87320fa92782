"""Which files an answer writes into a repository. Pure and linear.

A file is a fenced block that says its path: after the language on the line of the fence, or in the first line of the
block, which stays a part of the file and counts if both say one.

    ```python pkg/sums.py            ```python
    def of_two(a, b): ...            # path: pkg/sums.py
    ```                              def of_two(a, b): ...
                                     ```

A fence is a line that begins with three backticks or more, and is closed by a line of as many. The last block of a path
counts. A block without a path is no file; nor is one whose path no file can have, or which a tool would read unasked:
such a block is passed over, so that nothing is won by writing it.
"""

import dataclasses
import re
from collections.abc import Mapping

from rljob_workers.verifier.graders import repository_paths

MAX_FILES = 64
MAX_BYTES = 256 << 10
_FENCE = re.compile(r"(`{3,})([^`]*)\Z")
_FIRST_LINE = re.compile(r"#[ \t]{0,8}path:[ \t]{0,8}(\S+)[ \t]{0,8}\Z")


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: the words on the line of its fence, and its lines."""

    info: tuple[str, ...]
    lines: tuple[str, ...]


class UnusableError(Exception):
    """The answer writes more than it may, or a file where it writes a folder."""


def files_of(completion: str) -> dict[str, str]:
    """Return texts by path, none if the answer writes no file. Raises UnusableError."""
    files: dict[str, str] = {}
    for block in blocks(completion):
        path = path_of(block)
        if path and not repository_paths.problem(path) and not repository_paths.is_configuration(path):
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
    if repository_paths.clash(whole):
        raise UnusableError("a file where there is a folder, or a folder where there is a file")
    return whole


def path_of(block: Block) -> str:
    """Return the path that a block says, an empty text if it says none."""
    match = _FIRST_LINE.match(block.lines[0]) if block.lines else None
    if match:
        return match.group(1)
    return block.info[1] if len(block.info) > 1 else ""


def blocks(completion: str) -> list[Block]:
    """Return the closed blocks in order."""
    found: list[Block] = []
    fence, info, lines = "", "", list[str]()
    for line in completion.split("\n"):
        match = _FENCE.match(line.rstrip())
        if not fence:
            if match:
                fence, info, lines = match.group(1), match.group(2), []
        elif match and len(match.group(1)) >= len(fence) and not match.group(2):
            found.append(Block(tuple(info.split()), tuple(lines)))
            fence = ""
        else:
            lines.append(line.removesuffix("\r"))
    return found
