"""The coordinator's rows of `make bench`, at their smallest: everything in them works, and what they say holds.

Bars are met by CPU seconds on a machine with nothing else to do; here only what a size changes by orders is looked at.
"""

import pytest
import yaml
from tests.bench import runner
from tests.bench.rows import co_coordinator

ROWS = ("CO1", "CO1-versions", "CO1-groups", "CO2", "CO3")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, runner.Measured]:
    return {row.row: row for row in co_coordinator.measure("smoke", tmp_path_factory.mktemp("bench"))}


def ratio(measured: runner.Measured) -> float:
    return max(pair.ours / pair.peer for pair in measured.pairs)


def test_every_row_is_measured_and_has_a_bar(measured: dict[str, runner.Measured]) -> None:
    assert tuple(measured) == ROWS
    assert set(ROWS) <= yaml.safe_load(runner.THRESHOLDS.read_text(encoding="utf-8")).keys()


def test_neither_versions_nor_groups_make_a_submit_dearer(measured: dict[str, runner.Measured]) -> None:
    """With 300 versions it was a tenth, when each submit read all of them."""
    assert ratio(measured["CO1-versions"]) > ratio(measured["CO1"]) / 3
    assert ratio(measured["CO1-groups"]) > ratio(measured["CO1"]) / 3


def test_a_tick_and_a_build_are_within_half_of_their_bars(measured: dict[str, runner.Measured]) -> None:
    assert min(pair.ours / pair.peer for pair in measured["CO2"].pairs) < 2
    assert ratio(measured["CO3"]) > 0.5
