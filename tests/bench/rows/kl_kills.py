"""KL: how long a run takes to be as before a kill -9, the longest of many against the bound; a loss breaks the row.

KL1 has the engine without a model in place of vLLM, which loads for half a minute; all other processes, and the rollout
around it, are the real ones. KL2 has vLLM. Both train a random model of two layers.
"""

import pathlib
from collections.abc import Sequence

from tests.bench import kills, runner

_NUM = {("fake", "smoke"): 8, ("fake", "full"): 1000, ("vllm", "smoke"): 2, ("vllm", "full"): 20}


def measure(size: str, out: pathlib.Path) -> Sequence[runner.Measured]:
    """Return both rows: on 8 and 2 kills, or on 1,000 and 20."""
    return [_measured("KL1", "fake", size, out), _measured("KL2", "vllm", size, out)]


def _measured(row: str, engine: str, size: str, out: pathlib.Path) -> runner.Measured:
    done = kills.bench(out / row, num_kills=_NUM[engine, size], engine=engine, seed=0)
    if done.problems:
        raise RuntimeError(f"{len(done.kills)} kills, then: {'; '.join(done.problems[:5])}")
    return runner.Measured(
        row=row,
        title=f"longest recovery after kills -9, engine {engine}, against the bound",
        unit="s",
        pairs=[runner.Pair(max(one.recovered_s for one in done.recoveries), kills.BOUND_S[engine])],
        params={"kills": len(done.kills), "engine": engine},
        agreement="nothing acknowledged was lost, nothing trained twice, no version half applied, audit clean",
        notes=kills.summary(done),
    )
