"""docs/coverage/workflows.md: every section of the reference has rows, every row names tests that exist or says why
not.
"""

import ast
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs/coverage/workflows.md"
SECTIONS = set("1.1 1.2 1.3 2 2.1 3 4 5 5.1 5.2 5.3 5.4 5.5 6.1 6.2 6.3 7 8.1 8.2 9 10 11 12 13".split())  # noqa: SIM905  # one line
NOT_YET = "not yet: "


def rows() -> list[tuple[str, str, str]]:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [(section, rule, tests.strip("| ")) for section, rule, tests in cells if section != "§"]


@functools.cache
def functions(path: pathlib.Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_section_of_the_reference_has_a_row() -> None:
    named = {section for section, _, _ in rows()}
    assert named == SECTIONS, f"missing {SECTIONS - named}, unknown {named - SECTIONS}"


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row[0]}: {row[1][:60]}")
def test_a_rule_names_tests_that_exist_or_says_that_nothing_serves_it(row: tuple[str, str, str]) -> None:
    section, rule, cell = row
    if cell.startswith(NOT_YET):
        assert len(cell) > len(NOT_YET), f"{section} ({rule}): say what happens instead"
        return
    tests = re.findall(r"`([^`]+)::([^`]+)`", cell)
    assert tests, f"{section} ({rule}): name a test, or write '{NOT_YET}why'"
    for file, name in tests:
        path = ROOT / "tests" / file
        assert path.is_file(), f"{section} ({rule}): there is no tests/{file}"
        assert name in functions(path), f"{section} ({rule}): tests/{file} has no {name}"


def test_no_rule_stands_twice() -> None:
    seen = [(section, rule) for section, rule, _ in rows()]
    assert len(seen) == len(set(seen))
