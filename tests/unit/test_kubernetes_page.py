"""The table of versions is what reports of pytest say."""

import pytest
from generators import kubernetes_page
from generators.kubernetes_page import BEGIN, END, Case, Run

REPORT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest" tests="5" timestamp="2026-11-25T07:31:02.123456+00:00">
  <properties><property name="kubernetes" value="v1.34.4"/></properties>
  <testcase classname="tests.cluster.operator.test_stories" name="test_a_job_runs[a]" time="1"/>
  <testcase classname="tests.cluster.operator.test_stories" name="test_a_job_runs[b]" time="1">
    <failure message="AssertionError: no pods&#10;more">traceback</failure></testcase>
  <testcase classname="tests.cluster.test_sdk" name="test_it_waits">
    <error message="no cluster">traceback</error></testcase>
  <testcase classname="tests.cluster.test_sdk" name="test_it_lists"/>
  <testcase classname="tests.cluster.test_sdk" name="test_it_ends">
    <skipped type="pytest.skip" message="helm is missing">x</skipped></testcase>
  <testcase time="0.1"/>
</testsuite></testsuites>
"""
STORY, WAITS, LISTS, ENDS = (
    "operator/test_stories.py::test_a_job_runs",
    "test_sdk.py::test_it_waits",
    "test_sdk.py::test_it_lists",
    "test_sdk.py::test_it_ends",
)


def test_a_report_says_version_day_and_the_outcome_of_each_case() -> None:
    assert kubernetes_page.read(REPORT) == Run(
        "1.34.4",
        "2026-11-25",
        [
            Case(STORY, "passed"),
            Case(STORY, "failed", "AssertionError: no pods"),
            Case(WAITS, "failed", "no cluster"),
            Case(LISTS, "passed"),
            Case(ENDS, "skipped", "helm is missing"),
        ],
    )


def test_a_report_without_a_version_is_refused() -> None:
    with pytest.raises(ValueError, match="no property kubernetes"):
        kubernetes_page.read(REPORT.replace('name="kubernetes"', 'name="other"'))


def test_reports_of_a_version_are_one_run_of_the_latest_day_and_versions_are_in_order() -> None:
    first, second = Run("1.36.10", "2026-11-24", [Case("a", "passed")]), Run("1.36.9", "2026-11-23", [])
    third = Run("1.36.10", "2026-11-25", [Case("b", "passed")])
    assert kubernetes_page.merged([first, second, third]) == [
        second,
        Run("1.36.10", "2026-11-25", [Case("a", "passed"), Case("b", "passed")]),
    ]


def test_the_tables_count_cases_name_tests_and_give_reasons() -> None:
    runs = [kubernetes_page.read(REPORT), Run("1.35.4", "2026-11-26", [Case(STORY, "passed"), Case(STORY, "passed")])]
    text = kubernetes_page.tables(runs)
    assert "| 1.34.4 | 2026-11-25 | 2 | 2 | 1 |" in text
    assert "| 1.35.4 | 2026-11-26 | 2 | 0 | 0 |" in text
    assert "| test | 1.34.4 | 1.35.4 |\n|---|---|---|\n" in text
    assert f"| `{STORY}` | 1 passed, 1 failed | 2 passed |" in text
    assert f"| `{WAITS}` | failed | not run |" in text
    assert f"- 1.34.4, `{ENDS}`, skipped: helm is missing\n" in text
    assert f"- 1.34.4, `{STORY}`, failed: AssertionError: no pods\n" in text
    assert text.count(f"`{LISTS}`") == 1


def test_a_page_has_new_runs_in_place_of_old_ones_and_keeps_the_rest() -> None:
    page = f"# Versions\n{BEGIN}\nold\n{END}\nThe end.\n"
    fresh = kubernetes_page.written(page, [Run("1.35.4", "2026-11-26", [Case(LISTS, "passed")])])
    assert fresh.startswith(f"# Versions\n{BEGIN}\n| version |")
    assert fresh.endswith(f"| `{LISTS}` | passed |\n{END}\nThe end.\n")
    assert "old" not in fresh
