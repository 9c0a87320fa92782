"""The table of docs/design/operator.md#s-17 on a real API server with stand-in kubelets: each figure keeps its limit.

RLJOB_SCALE_JOBS=200 pytest -s tests/cluster/scale, as CI does, or 1000, or 4000.
"""

import pathlib
from collections.abc import Mapping

import pytest
import yaml

from rljob_testing.operator_table import CHOSEN

LIMITS = yaml.safe_load(pathlib.Path(__file__).with_name("thresholds.yaml").read_text())


def _limit(name: str) -> Mapping[int, float]:
    """Return the limits of a row by size."""
    row = LIMITS["rows"][name]
    return row["at_most"] if "at_most" in row else row["at_least"]


@pytest.mark.timeout(
    14_400
)  # the whole story is reported before the first figure; 200 jobs take minutes, 1,000 an hour
@pytest.mark.parametrize("name", [name for name in LIMITS["rows"] if CHOSEN in _limit(name)])
def test_figure_keeps_its_limit(figures: Mapping[str, float], name: str) -> None:
    found, limit, row = figures[name], _limit(name)[CHOSEN], LIMITS["rows"][name]
    assert found <= limit if "at_most" in row else found >= limit, f"{row['row']}: {name} is {found}"


def test_every_row_has_one_limit_for_every_size_that_the_reference_speaks_of() -> None:
    for name, row in LIMITS["rows"].items():
        assert ("at_most" in row) != ("at_least" in row), name
        assert {200, 1000} <= set(_limit(name)) <= set(LIMITS["sizes"]), name
    assert _limit("report_age_s")[4000] == _limit("report_age_s")[1000] == 10
