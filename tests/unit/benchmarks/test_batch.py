"""One batch of 1,024 answers through isolated workers costs little more than grading it in a plain process does.

Compared by the CPU that each side uses, which other work on the machine leaves alone; by the clock, and against the bar
of 0.7, the row C7c of `make bench` compares them where nothing else continues.
"""

import os
import time

import pytest
from tests.bench.rows import c7_maths, c7c_batch

from rljob_workers.verifier.sandbox.processes import procfs

# Of what the plain process uses; a core that is shared spoils the caches of the side that changes processes more.
LEAST = 0.5


def cpu_s() -> float:
    """Return the CPU seconds of this process and its children, those that have not ended."""
    return time.process_time() + sum(map(procfs.cpu_s, procfs.children(os.getpid())))


@pytest.mark.covers("graders 11")
async def test_batch_has_the_verdicts_of_a_plain_process_and_costs_at_most_twice_its_time() -> None:
    warm, cases = c7c_batch.roots(2, 16), c7c_batch.roots(1, c7c_batch.ANSWERS)
    async with c7_maths.client_of(c7c_batch.REWARD, num_slots=1) as client:
        await c7_maths.ours(client, warm, "warm", batch=len(warm))
        before_s = cpu_s()
        verdicts = await c7_maths.ours(client, cases, "batch", batch=len(cases))
        ours_s = cpu_s() - before_s
    c7c_batch.Plain.warm()
    for case in warm:
        c7c_batch.Plain.score(case)
    before_s = cpu_s()
    scores = [c7c_batch.Plain.score(case) for case in cases]
    plain_s = cpu_s() - before_s
    assert [verdict.reward for verdict in verdicts] == scores
    assert set(scores) == {0.0, 1.0}
    assert plain_s / ours_s >= LEAST, f"{plain_s:.2f} s plain, {ours_s:.2f} s through the service"
