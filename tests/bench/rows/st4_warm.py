"""ST-4: programs in forks of a warm interpreter, confined, against bare `python -I -S` for each.

The bare one imports nothing; ours has the preamble's modules.
"""

import contextlib
import pathlib
from collections.abc import Sequence

from tests.bench import runner
from tests.bench.rows import sandbox_runs

from rljob_workers.verifier.sandbox.processes import warm


def measure(size: str, out: pathlib.Path) -> Sequence[runner.Measured]:
    """Return the row; it writes nothing to `out`."""
    del out
    with contextlib.closing(warm.Interpreter()) as interpreter:
        pairs = sandbox_runs.pairs(ours=sandbox_runs.forked(interpreter), peer=sandbox_runs.bare(), size=size)
    return [runner.Measured(row="ST4", title="runs/s, warm against bare Python", unit="runs/s", pairs=pairs)]
