"""Texts that users read (help, errors, logs, metrics, alerts, pages) use standard English and the glossary's words."""

import ast
import pathlib
import re
from collections.abc import Iterator

import pytest

from rljob_testing import pages

ROOT = pathlib.Path(__file__).parents[2]
# What not to write -> what to write instead. Extend it when a phrase is replaced, so that it does not come back.
INSTEAD = {
    r"goes on|go on|went on|gone on|going on": "continue, resume",
    r"told|telling": "reported, logged",
    r"beside": "next to, in addition to, alongside",
    r"anew": "again, restart",
    r"nobody|somebody|everybody|anybody|whoever": "no process, no one, anyone who",
    r"mend|mended|mending": "fix",
    r"stands?|stood|standing": "is, appears, makes no progress",
    r"is no role|is no number|is no YAML value|is no JSON|is no artifact id": "unknown ...; expected one of ...",
    r"held up by|holds? it up": "blocked by",
    r"of one's own": "custom, your own",
    r"so many": "N, a number of",
    r"behaviour": "behavior, in one spelling",
    r"prox": "proximal policy",
}
# Where a word of the list is right: "stands for" means represents; the glossary lists what not to write.
APART = re.compile(r"\b(?:stands? (?:for|in for)|stand-in)\b", re.IGNORECASE)
# Names that fit every value and say nothing of this one; `one` is for a loop whose thing has a name.
VAGUE = {"asked", "found", "given", "held", "kept", "known", "made", "one", "said", "seen", "told", "wanted"}
FORBIDDEN = re.compile(rf"\b(?:{'|'.join(INSTEAD)})\b", re.IGNORECASE)


def tracked(*patterns: str) -> list[pathlib.Path]:
    """Return tracked files that were written by hand."""
    return [path for path in pages.tracked(*patterns) if "_pb2" not in path.name]


def forbidden(text: str) -> list[str]:
    """Return the phrases of a text that are not to be written; code in backticks is left alone."""
    return [match[0] for match in FORBIDDEN.finditer(APART.sub("", re.sub(r"`[^`]*`", "", text)))]


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of string literals with at least two words, docstrings aside; words are no identifiers."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in docstrings:
            continue
        if re.search(r"[a-z] [a-z]", node.value):
            yield node.lineno, node.value


def vague_names(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of variables, parameters, attributes, fields and functions of the vague list."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.id if isinstance(node, ast.Name) else node.attr.removeprefix("_")
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name = node.name
        else:
            continue
        # A function `one`, next to `all` and `many`, returns one row.
        if name in VAGUE and not (name == "one" and isinstance(node, ast.FunctionDef)):
            yield node.lineno, name


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("found = 1", ["found"]),
        ("for one in rows: pass", ["one"]),
        ("def f(*, seen): self._held = seen", ["_held", "seen"]),
        ("class Facts:\n    known: bool = False\n    def told(self): ...", ["known", "told"]),
        ("rows = [made for made in rows]", ["made"]),
        ("print(found, row.kept, f(wanted=1)); foundation = 1", []),
    ],
)
def test_a_vague_name_is_noticed(source: str, names: list[str]) -> None:
    assert sorted(name for _, name in vague_names(source)) == sorted(name.removeprefix("_") for name in names)


def test_variables_of_the_source_are_named_after_what_they_hold() -> None:
    assert [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in tracked(*pages.SOURCES)
        for line, name in vague_names(path.read_text())
    ] == []


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ("the run goes on once it is back", ["goes on"]),
        ("nobody waits; mend the records", ["nobody", "mend"]),
        ("held up by rollout-0", ["held up by"]),
        ("one value stands for two; `goes on` is quoted", []),
        ("the run continues once the coordinator answers", []),
    ],
)
def test_a_phrase_of_the_list_is_noticed(text: str, phrases: list[str]) -> None:
    assert forbidden(text) == phrases


def test_messages_of_the_code_hold_no_phrase_of_the_list() -> None:
    # Lists of words that graders look for in answers are data, not messages.
    sources = [
        path for path in tracked(*pages.SOURCES) if "graders/math" not in str(path) and "symbolic" not in str(path)
    ]
    assert [
        f"{path.relative_to(ROOT)}:{line}: {phrase!r} in {text[:80]!r}"
        for path in sources
        for line, text in messages(path.read_text())
        for phrase in forbidden(text)
    ] == []


def test_alerts_and_pages_hold_no_phrase_of_the_list() -> None:
    # Tests' names make the coverage pages, and the glossary says what not to write.
    apart = ("docs/coverage/", "docs/glossary.md")
    texts = tracked("README.md", "docs/*.md", "charts/rljob-operator/files/rules/*.yaml")
    wrong = []
    for page in texts:
        name = str(page.relative_to(ROOT))
        if name.startswith(apart):
            continue
        for number, line in enumerate(page.read_text().splitlines(), 1):
            wrong += [f"{name}:{number}: {phrase!r}" for phrase in forbidden(line)]
    assert wrong == []
