"""ST-5: programs in an interpreter of their own, confined, against bare `python -I -S`: once with the same text, which
begins with the preamble's imports, and once without them.
"""

import pathlib
from collections.abc import Sequence

from tests.bench import runner
from tests.bench.rows import sandbox_runs


def measure(size: str, out: pathlib.Path) -> Sequence[runner.Measured]:
    """Return both rows; it writes nothing to `out`."""
    del out
    return [
        runner.Measured(
            row=row,
            title=f"runs/s, fresh against bare Python {what}",
            unit="runs/s",
            pairs=sandbox_runs.pairs(ours=sandbox_runs.fresh(), peer=sandbox_runs.bare(preamble=preamble), size=size),
        )
        for row, preamble, what in (("ST5", True, "of the same text"), ("ST5-empty", False, "without imports"))
    ]
