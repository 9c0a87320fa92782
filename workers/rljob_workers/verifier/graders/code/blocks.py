"""Fenced blocks of an answer, as models write them. Pure and linear.

A fence is three or more backticks or tildes. It opens a block at the beginning of a line, indented, in a list or in a
quotation, or at the end of a line of prose; what follows it on its line is the block's info. A line of as many of the
same closes the block, and so does the next fence with an info, where the closing one was forgotten; a fence that is
indented by four columns more than the block is a part of its text. The end of the answer closes the last block, or a
shorter fence in it does.
Source of what is not lenient: the CommonMark specification 0.31, 4.5.
`programs_of`: which blocks may be the answer's program, and which of them comes first (docs/design/graders.md#s-6-1,
C1, C3 and C7). Whether a text can be the program is found out where it runs (`sandbox/processes/candidate.py`), since
model text is compiled nowhere else.
"""

import dataclasses
import re
from collections.abc import Sequence

# Quotations and items of lists, one within the other.
_CONTAINERS = re.compile(r"(?:[ \t]*(?:>|[-*+](?=[ \t])|[0-9]{1,9}[.)](?=[ \t])))*[ \t]*")
_LEAST = 3
_FENCE = re.compile(r"`{3,}|~{3,}")
_BACKTICKS_AT_END = re.compile(r"(?<!`)`{3,}\Z")
# From here on an indented fence is text of the block.
_TEXT_FROM = 4
_MOST_QUOTES = 8

PYTHON = "python"
_WORD = re.compile(r"\{?[ \t]*\.?([A-Za-z][\w+#.-]*)")
_PYTHON = re.compile(r"(?:python|py|pypy|ipython|cpython)(?:[-_]?[0-9]+(?:\.[0-9]+)*)?|[\w.-]+\.py", re.IGNORECASE)
# Next to a word that is alone after a fence, which is always taken for a language.
_WORDS = (
    "bash c c# c++ cc clojure console cpp cs csharp css d dart diff elixir elm erlang fortran fsharp go golang groovy"
    " haskell html ini input java javascript js json jsx julia kotlin kt latex lisp lua makefile markdown matlab md nim"
    " objc ocaml octave output pascal perl php plain plaintext powershell prolog pseudocode pycon r racket rb rs ruby"
    " rust scala scheme sh shell sql swift tex text toml ts tsx txt typescript vb xml yaml yml zig zsh"
)
_LANGUAGES = frozenset(_WORDS.split())
# The first line of a program that begins on the line of its fence, and no attribute of the block.
_CODE = re.compile(r"(?:import|from|def|class|for|while|if|try|with|async)\b|[@#]|[A-Za-z_][\w.]*\(|[\w., \[\]]+ = ")


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: what follows its fence on the line, and its lines, without the block's own indentation."""

    info: str
    lines: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _Opening:
    """A line that opens a block. indent: columns before the fence; quotes: of how many quotations it is a part."""

    fence: str
    info: str
    indent: int = 0
    quotes: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class _End:
    """A line that ends a block: what of the line is still the block's, and the block that it opens, if it does."""

    before: str = ""
    opens: _Opening | None = None


def blocks(completion: str) -> list[Block]:
    result: list[Block] = []
    opened: _Opening | None = None
    lines: list[str] = []
    for raw in completion.split("\n"):
        line = raw.removesuffix("\r")
        if opened is None:
            block = _of_one_line(line)
            if block is not None:
                result.append(block)
            else:
                opened, lines = _opening(line), []
            continue
        line = _unquoted(line, opened.quotes)
        end = _end(line, opened)
        if end is None:
            lines.append(line)
            continue
        if end.before:
            lines.append(end.before)
        result.append(Block(opened.info, unindented(lines, most=opened.indent)))
        opened, lines = end.opens, []
    if opened is not None:
        result.append(Block(opened.info, unindented(_before_shorter(lines, opened.fence[0]), most=opened.indent)))
    return result


def unindented(lines: Sequence[str], *, most: int | None = None) -> tuple[str, ...]:
    """Return lines without the indentation of the first of them that is not blank, or without `most` columns of it."""
    first = next((line for line in lines if line.strip()), "")
    columns = len(first) - len(first.lstrip(" \t"))
    columns = columns if most is None else min(columns, most)
    return tuple(line[min(columns, len(line) - len(line.lstrip(" \t"))) :] for line in lines)


def _before_shorter(lines: Sequence[str], kind: str) -> Sequence[str]:
    """Return the lines of a block that nothing closed, up to a fence that would have if it were longer."""
    ends = (at for at, line in enumerate(lines) if len(line.strip()) >= _LEAST and not line.strip().strip(kind))
    return lines[: next(ends, len(lines))]


def language(info: str) -> tuple[str, str]:
    """Return the language of an info, `python` for each of its names, and the code on the line of the fence.

    An info that names no language has none, and is code itself.
    """
    match = _WORD.match(info)
    if match is None:
        return "", info
    word, after = match.group(1).rstrip(".-"), info[match.end(1) :]
    rest = after.strip()
    if _PYTHON.fullmatch(word) and not after.startswith("("):
        return PYTHON, rest if _CODE.match(rest) else ""
    if not rest.strip("}"):
        return word.lower(), ""
    is_other = word.lower() in _LANGUAGES and after[0] in " \t:{},;" and not rest.startswith("=")
    return (word.lower(), "") if is_other else ("", info)


def _opening(line: str) -> _Opening | None:
    before = _CONTAINERS.match(line)
    assert before is not None, "it matches nothing, too"
    fence = _FENCE.match(line, before.end())
    if fence is not None:
        info = line[fence.end() :].strip()
        if fence.group()[0] == "`" and "`" in info:
            return None
        quotes = min(_MOST_QUOTES, before.group().count(">"))
        return _Opening(fence.group(), info, 0 if quotes else before.end(), quotes)
    at = line.find("```")
    fence = _FENCE.match(line, at) if at >= 0 else None
    if fence is None:
        return None
    info = line[fence.end() :].strip()
    # In the midst of prose only what cannot be meant otherwise.
    return _Opening(fence.group(), info) if not info or language(info) == (PYTHON, "") else None


def _of_one_line(line: str) -> Block | None:
    """Return the block that begins and ends on this line, if one does."""
    before = _CONTAINERS.match(line)
    assert before is not None, "it matches nothing, too"
    fence = _FENCE.match(line, before.end())
    end = _BACKTICKS_AT_END.search(line.rstrip()) if fence is not None and fence.group()[0] == "`" else None
    if fence is None or end is None or end.start() <= fence.end() or len(end.group()) < len(fence.group()):
        return None
    text = line[fence.end() : end.start()]
    word = _WORD.match(text.lstrip())
    if word is not None and _PYTHON.fullmatch(word.group(1)):
        return Block(PYTHON, (text.lstrip()[word.end(1) :].strip(),))
    return Block("", (text.strip(),))


def _end(line: str, opened: _Opening) -> _End | None:
    """Return how a line ends the block; None for a line of its text."""
    text = line.lstrip(" \t")
    fence = _FENCE.match(text)
    if fence is None or not fence.group().startswith(opened.fence):
        return _end_of_text(line, opened)
    rest = text[fence.end() :]
    if len(line) - len(text) >= opened.indent + _TEXT_FROM or "`" in rest:
        return None
    info = rest.strip()
    # Prose after the fence is not an info string.
    is_info = bool(info) and (language(info)[0] == PYTHON or not (rest[0].isspace() or len(info.split()) > 1))
    return _End(opens=_Opening(fence.group(), info, opened.indent, opened.quotes) if is_info else None)


def _end_of_text(line: str, opened: _Opening) -> _End | None:
    """Return how a line ends the block by a fence behind its last text."""
    end = _BACKTICKS_AT_END.search(line.rstrip())
    if end is None or not end.group().startswith(opened.fence) or "`" in line[: end.start()]:
        return None
    return _End(before=line[: end.start()].rstrip())


def _unquoted(line: str, depth: int) -> str:
    """Return a line without the marks of as many quotations."""
    return re.sub(rf"\A(?:[ \t]{{0,3}}> ?){{1,{depth}}}", "", line) if depth else line


MIN_CHARS_COMPAT = 20
# Of more blocks the last count.
MAX_TEXTS = 16
_CODE_FENCE = "```"
_TAGS_COMPAT = ("python", "py", "cpp")


def programs_of(completion: str, *, compat: bool) -> tuple[str, ...]:
    """Return the texts that may be the program, the first that can be one counts; none if there is no block.

    Blocks that are tagged as Python, from the last one back, and then those without a tag. compat: one at most.
    """
    if compat:
        return _of_compat(completion)
    texts: dict[str, list[str]] = {PYTHON: [], "": []}
    for block in blocks(completion):
        tag, begins = language(block.info)
        if tag in texts and (text := _text((begins, *block.lines))):
            texts[tag].append(text)
    return tuple([*reversed(texts[PYTHON]), *reversed(texts[""])][:MAX_TEXTS])


def has_unsupported(completion: str) -> bool:
    """Return whether there is a block in a language that mode strict does not take."""
    tags = (language(block.info)[0] for block in blocks(completion))
    return any(tag not in ("", PYTHON) for tag in tags)


def _text(lines: tuple[str, ...]) -> str:
    # The first line of a program is not indented, whatever the block is in.
    return "\n".join(unindented(lines)).strip("\n").rstrip()


def _of_compat(completion: str) -> tuple[str, ...]:
    """Return the last closed block of 20 characters or more, as the original's pattern reads it.

    Whatever is between two fences is a block, in any language; of its beginning `python`, `py` or `cpp` is cut off,
    so that `python3` leaves a `3` on a line of its own.
    """
    parts = completion.split(_CODE_FENCE)
    for part in reversed(parts[1 : len(parts) - 1 : 2]):
        tag = next((tag for tag in _TAGS_COMPAT if part[: len(tag)].lower() == tag), "")
        text = part[len(tag) :].strip()
        if len(text) >= MIN_CHARS_COMPAT:
            return (text,)
    return ()
