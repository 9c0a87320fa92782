"""Anyone who cites a document of this repository cites a place that exists: `docs/design/operator.md#s-8-7`."""

import ast
import io
import pathlib
import re
import tokenize
from tokenize import COMMENT

import pytest

from rljob_testing import pages

ROOT = pathlib.Path(__file__).parents[2]
_CITED = re.compile(r"docs/(?P<page>[\w/.-]+\.md)(?:#(?P<anchor>[\w-]+))?")
_ANCHOR = re.compile(r'<a id="([\w-]+)"></a>')


def anchors(page: str) -> set[str]:
    """Return what a link into a page may name: anchors that it sets, and its headings as GitHub spells them."""
    return {*_ANCHOR.findall(page), *pages.heading_anchors(page)}


def _broken(page: pathlib.Path, anchor: str | None) -> str | None:
    if not page.is_file():
        return "no such page"
    if anchor and anchor not in anchors(page.read_text()):
        return f"no #{anchor} in it"
    return None


def test_every_page_that_is_cited_exists_and_has_the_anchor() -> None:
    wrong = []
    for path in pages.tracked("*.py", "*.md", "*.yaml", "*.toml", "*.proto", "*.tpl", "Makefile"):
        for match in _CITED.finditer(path.read_text()):
            problem = _broken(ROOT / "docs" / match["page"], match["anchor"])
            if problem:
                wrong.append(f"{path.relative_to(ROOT)}: {match[0]}: {problem}")
    assert wrong == []


@pytest.mark.parametrize(
    ("page", "anchor"),
    [("# The Ledger\n", "the-ledger"), ('- <a id="s-8-7"></a>8.7 Deadlines\n', "s-8-7"), ("## 1. A & B\n", "1-a--b")],
)
def test_headings_and_set_anchors_can_be_linked_to(page: str, anchor: str) -> None:
    assert anchor in anchors(page)


def test_a_page_or_anchor_that_is_not_there_is_noticed(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Here\n")
    assert _broken(page, "here") is None
    assert _broken(page, "gone") == "no #gone in it"
    assert _broken(tmp_path / "other.md", None) == "no such page"


# A document that is not in the repository, or a number without its page: a reader cannot follow it.
_DANGLING = re.compile(
    r"\b(?:algorithms|operator(?:'s)?|graders|workflows?|weights?|isolation|sandbox|observability|performance)"
    r" reference(?:,? (?:section )?\d|'s part \d)"
    r"|\b[Ss]ections? \d+(?:\.\d+)* of the \w+(?:'s)? reference"
    r"|\bspec \d+\.\d"
)
_BARE = re.compile(r"\(\d{1,2}\.\d{1,2}(?:(?:, | and |-)\d{1,2}\.\d{1,2})*\)")


def dangling(source: str) -> list[str]:
    """Return citations in docstrings and comments of Python source that name no page of the repository."""
    prose = [text for node in ast.walk(ast.parse(source)) if (text := _docstring(node))]
    prose += [token.string for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type == COMMENT]
    return [match[0] for text in prose for pattern in (_DANGLING, _BARE) for match in pattern.finditer(text)]


def _docstring(node: ast.AST) -> str | None:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return ast.get_docstring(node) if isinstance(node, documented) else None


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('"""Decisions (operator reference 8.7)."""\n', ["operator reference 8"]),
        ("# Written once a minute (7.9, 9.12).\n", ["(7.9, 9.12)"]),
        ("x = f(1.5)\n", []),
        ('"""Rule: docs/design/operator.md#s-8-7."""\n', []),
    ],
)
def test_citations_without_a_page_are_noticed(source: str, found: list[str]) -> None:
    assert dangling(source) == found


def test_no_code_cites_a_document_that_is_not_here_or_a_number_without_its_page() -> None:
    packages = pages.tracked(*pages.SOURCES)
    assert [
        f"{path.relative_to(ROOT)}: {citation}"
        for path in packages
        if "_pb2" not in path.name
        for citation in dangling(path.read_text())
    ] == []
