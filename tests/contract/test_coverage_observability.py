"""`docs/coverage/observability.md` has every reason of a stall and every alert, with what provokes it for real."""

import pathlib
import re

import pytest

from rljob_api.conditions import STALL_REASONS
from rljob_testing import alert_cases, rules

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs/coverage/observability.md"
# Processes that run: a fake clock provokes nothing.
TIERS = ("integration/", "cluster/")
OPEN, CASES = "open: ", "cases"
NAMED = re.compile(r"`([^`]+)::([^`]+)`")


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading, its own head left out."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


STALLS, ALERTS = rows("Stalls"), rows("Alerts")


def test_every_reason_of_a_stall_has_one_row_in_the_order_of_its_list() -> None:
    assert [row[0].strip("` ") for row in STALLS] == list(STALL_REASONS)


def test_every_alert_of_the_chart_has_one_row_in_the_order_of_its_file() -> None:
    assert [row[0].strip("` ") for row in ALERTS] == [alert.name for alert in rules.alerts()]


@pytest.mark.parametrize("row", [*STALLS, *ALERTS], ids=lambda row: row[0].strip("`"))
def test_row_names_tests_with_processes_that_exist_or_says_what_is_missing(row: list[str]) -> None:
    tests = row[1]
    if tests.startswith(OPEN):
        assert len(tests) > len(OPEN), f"{row[0]}: say why"
        return
    if tests == CASES:
        assert row[0].strip("`") in alert_cases.CASES, f"{row[0]} has no case either"
        return
    named = NAMED.findall(tests)
    assert named, f"{row[0]}: name a test, or write '{OPEN}why'"
    for file, function in named:
        assert file.startswith(TIERS), f"{row[0]}: {file} provokes nothing with processes"
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {function}\(", text, re.MULTILINE), f"{file} has no {function}"


def test_row_of_a_stall_that_is_provoked_says_who_is_named_and_what_is_said() -> None:
    assert [row[0] for row in STALLS if not row[1].startswith(OPEN) and not all(row[2:4])] == []
