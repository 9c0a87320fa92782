"""ST-8: what mixed programs leave behind: memory of the grading workers; a leak or a wrong verdict breaks the row."""

import asyncio
import os
import pathlib
from collections.abc import Sequence

from tests.bench import runner, soak


def measure(size: str, out: pathlib.Path) -> Sequence[runner.Measured]:
    """Return the row, on 200 or 50,000 executions; it writes nothing to `out`."""
    del out
    executions = 50_000 if size == "full" else 200
    before, after, wrong = asyncio.run(soak.soak(executions, len(os.sched_getaffinity(0))))
    if wrong:
        raise RuntimeError(f"{len(wrong)} verdicts were wrong: {sorted(set(wrong))[:5]}")
    if after.processes > before.processes or after.descriptors > before.descriptors:
        raise RuntimeError(f"processes or descriptors were left: {before} before, {after} after")
    return [
        runner.Measured(
            row="ST8",
            title="resident memory of the largest grading worker, after against before",
            unit="bytes",
            pairs=[runner.Pair(after.worker_bytes, before.worker_bytes)],
            params={"executions": executions},
            notes=[f"service {before.service_bytes} bytes before, {after.service_bytes} after"],
        )
    ]
