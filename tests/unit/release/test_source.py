"""A release has one version and one time."""

import pytest
from release import source
from release.programs import ReleaseError

import rljob_api


def test_package_code_and_chart_have_one_version() -> None:
    assert source.version() == rljob_api.__version__


def test_versions_that_differ_are_refused_with_their_places() -> None:
    with pytest.raises(ReleaseError, match=r"pyproject\.toml is 0\.2\.0, Chart\.yaml is 0\.1\.0"):
        source.same_version({"pyproject.toml": "0.2.0", "Chart.yaml": "0.1.0"})


def test_the_time_is_the_variables_else_that_of_the_commit() -> None:
    assert source.epoch({"SOURCE_DATE_EPOCH": "1700000000"}) == 1_700_000_000
    # The first commit is of 2026.
    assert source.epoch({}) > 1_750_000_000


@pytest.mark.parametrize("text", ["", "today", "-1", "100000000", "1e9"])
def test_a_time_that_is_none_is_refused_with_the_variable(text: str) -> None:
    with pytest.raises(ReleaseError, match=f"SOURCE_DATE_EPOCH is '{text}'"):
        source.epoch({"SOURCE_DATE_EPOCH": text})
