"""C-7b: wall on the hostile maths set; the measurement is in `c7_maths.py`."""

import pathlib
from collections.abc import Sequence

from tests.bench import runner
from tests.bench.rows import c7_maths


def measure(size: str, out: pathlib.Path) -> Sequence[runner.Measured]:
    """Return the row; it writes nothing to `out`."""
    del out
    return c7_maths.hostile(size)
