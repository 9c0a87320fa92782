"""ST-3: programs in forks of a warm interpreter, confined, against bubblewrap and a fresh Python for each."""

import contextlib
import pathlib
from collections.abc import Sequence

from tests.bench import runner
from tests.bench.rows import sandbox_runs

from rljob_workers.verifier.sandbox.processes import warm


def measure(size: str, out: pathlib.Path) -> Sequence[runner.Measured]:
    """Return the row, skipped where there is no bubblewrap; it writes nothing to `out`."""
    del out
    peer = sandbox_runs.bubblewrap()
    reason = "" if peer else "bubblewrap is not installed, or may not make namespaces here"
    with contextlib.closing(warm.Interpreter()) as interpreter:
        ours = sandbox_runs.forked(interpreter)
        pairs = sandbox_runs.pairs(ours=ours, peer=peer, size=size) if peer else []
    return [
        runner.Measured(row="ST3", title="runs/s, warm against bubblewrap", unit="runs/s", pairs=pairs, reason=reason)
    ]
