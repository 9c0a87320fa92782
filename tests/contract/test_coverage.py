"""Requirements of `docs/design` and the tests that hold them, as `docs/coverage` lists them; none is left out."""

import typing

import pytest
from generators import coverage_pages
from generators.coverage_pages import DESIGN, PAGES, SUBJECTS

from rljob_api import enums
from rljob_api.manifest import algorithm
from rljob_testing import attack_rows

COVERED = coverage_pages.covered()
OPEN = coverage_pages.reasons()


@pytest.mark.parametrize("subject", SUBJECTS)
def test_page_is_what_the_markers_of_the_tests_make(subject: str) -> None:
    assert (PAGES / f"{subject}.md").read_text() == coverage_pages.page(subject, COVERED, OPEN), "run `make gen`"


@pytest.mark.parametrize("requirement", sorted({*COVERED, *OPEN}))
def test_requirement_that_a_test_names_exists(requirement: str) -> None:
    subject, _, number = requirement.partition(" ")
    if number:
        assert coverage_pages.anchor(number) in coverage_pages.anchors(subject)
    else:
        assert (DESIGN.parent / f"{subject}.md").is_file()


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_requirement_has_a_test_or_a_reason_for_having_none(subject: str) -> None:
    held = {coverage_pages.anchor(one.split()[1]) for one in [*COVERED, *OPEN] if one.startswith(f"{subject} ")}
    without = [one for one, family in coverage_pages.families(subject).items() if not family & held]
    assert without == [], f"name them in a test's marker, or in {coverage_pages.OPEN.name} with the reason"


def test_every_attack_that_the_table_runs_counts_as_a_test_of_its_row() -> None:
    ids = {f"sandbox {attack.id}" for attack in (*attack_rows.ATTACKS, *attack_rows.OF_X86_64)}
    assert {one for one in ids if one not in COVERED} == set()


def test_every_estimator_and_every_statistic_of_a_step_is_in_the_page_of_algorithms() -> None:
    text = (DESIGN / "algorithms.md").read_text()
    groups = {str(stat).split("/")[0] for stat in enums.StepStat if "/" in stat}
    assert [group for group in sorted(groups) if f"{group}/" not in text] == []
    assert [one for one in typing.get_args(algorithm.Estimator) if one not in text] == []


def test_title_of_a_rule_is_its_first_words() -> None:
    assert coverage_pages.titles("algorithms")["2-1"] == "2.1 Admission"
