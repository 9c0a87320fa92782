"""Anyone who cites a document of this repository cites a place that exists: `docs/design/operator.md#s-8-7`."""

import pathlib
import re
import subprocess

import pytest

from rljob_testing import pages

ROOT = pathlib.Path(__file__).parents[2]
_CITED = re.compile(r"docs/(?P<page>[\w/.-]+\.md)(?:#(?P<anchor>[\w-]+))?")
_ANCHOR = re.compile(r'<a id="([\w-]+)"></a>')


def _tracked(*patterns: str) -> list[pathlib.Path]:
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for line in listed.stdout.splitlines() if (path := ROOT / line).is_file()]


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
    for path in _tracked("*.py", "*.md", "*.yaml", "*.toml", "*.proto", "*.tpl", "Makefile"):
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
