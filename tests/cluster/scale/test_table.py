"""The table of docs/design/operator.md#s-17 on a real API server with stand-in kubelets: each figure keeps its limit.

RLJOB_SCALE_JOBS=200 pytest -s tests/cluster/scale, as CI does, or 1000, or 4000.
"""

import pathlib
from collections.abc import Mapping

import pytest
import yaml

LIMITS = yaml.safe_load(pathlib.Path(__file__).with_name("thresholds.yaml").read_text())


@pytest.mark.timeout(
    14_400
)  # the whole story is reported before the first figure; 200 jobs take minutes, 1,000 an hour
@pytest.mark.parametrize("name", LIMITS["rows"])
def test_figure_keeps_its_limit(figures: Mapping[str, float], chosen: int, name: str) -> None:
    limit, found = LIMITS["rows"][name], figures[name]
    if "at_most" in limit:
        assert found <= limit["at_most"][chosen], f"{limit['row']}: {name} is {found}"
    else:
        assert found >= limit["at_least"][chosen], f"{limit['row']}: {name} is {found}"


def test_every_row_has_one_limit_for_every_size() -> None:
    sizes = set(LIMITS["sizes"])
    for name, limit in LIMITS["rows"].items():
        bounds = [limit[key] for key in ("at_most", "at_least") if key in limit]
        assert len(bounds) == 1, name
        assert set(bounds[0]) == sizes, name
