"""ST-7: verdicts of a fixed set at concurrency 1 and at full load, and waiting at one and a half times what it can do.

The first row counts equal verdicts. The second one offers programs at 1.5 times the rate that all slots together reach,
with a queue as long as the slots; what is refused for want of room is not counted, as a client would go elsewhere.
"""

import asyncio
import json
import os
import pathlib
import statistics
import time
from collections.abc import Sequence

from tests.bench import runner, soak
from tests.bench.rows import c7_maths

from rljob_api import enums, process_config, types
from rljob_workers.rpc import verify_service
from rljob_workers.verifier import grading

REWARD = process_config.GraderConfig(name="load", type="areal-code", cpu_limit_s=2.0, wall_limit_s=60.0)
_COLUMNS = {"query_id": "q", "input_output": json.dumps({"inputs": ["1 2"], "outputs": ["3"]})}
_BUSY = "total = sum(range(200_000))\nprint(sum(map(int, input().split())))"


def measure(size: str, out: pathlib.Path) -> Sequence[runner.Measured]:
    """Return both rows, on 40 or 500 programs; it writes nothing to `out`."""
    del out
    count = 500 if size == "full" else 40
    flips = asyncio.run(_flips(count))
    alone_s, loaded_s, refused = asyncio.run(_waits(count))
    return [
        runner.Measured(
            row="ST7",
            title="equal verdicts at concurrency 1 and at full load, of all",
            unit="verdicts",
            pairs=[runner.Pair(count - len(flips), count)],
            notes=flips[:5],
        ),
        runner.Measured(
            row="ST7-wait",
            title="p99 of accepted programs at 1.5 x saturation, against unloaded",
            unit="s",
            pairs=[runner.Pair(loaded_s, alone_s)],
            params={"programs": count, "refused": refused},
        ),
    ]


def _items(programs: Sequence[str], name: str) -> list[types.VerifyItem]:
    return [
        types.VerifyItem(
            sample_id=f"{name}-{index}",
            attempt=0,
            prompt="",
            completion=f"```python\n{program}\n```",
            columns=_COLUMNS,
        )
        for index, program in enumerate(programs)
    ]


async def _flips(count: int) -> list[str]:
    programs = [program for program, _ in soak.cycle(count)]
    outcomes = []
    for num_slots in (1, len(os.sched_getaffinity(0))):
        async with c7_maths.verifier_of(REWARD, num_slots=num_slots) as verifier:
            verdicts = await verifier.grading.verify(_items(programs, "flips"))
        outcomes.append([(verdict.reward, verdict.outcome) for verdict in verdicts])
    return [
        f"{program!r}: {one}, then {other}"
        for program, one, other in zip(programs, *outcomes, strict=True)
        if one != other
    ]


async def _waits(count: int) -> tuple[float, float, int]:
    """Return p99 of one after the other, p99 under load, and how many were refused under load."""
    num_slots = len(os.sched_getaffinity(0))
    async with c7_maths.verifier_of(REWARD, num_slots=num_slots, max_waiting=num_slots) as verifier:
        graded = verifier.grading
        items = _items([_BUSY] * count, "alone")
        alone = [await _seconds(graded, item) for item in items]
        started_s = time.perf_counter()
        await asyncio.gather(*(_worker(graded, slot, count // num_slots) for slot in range(num_slots)))
        rate = count // num_slots * num_slots / (time.perf_counter() - started_s)
        pending = []
        for item in _items([_BUSY] * count, "loaded"):
            pending.append(asyncio.create_task(_seconds(graded, item)))
            await asyncio.sleep(1 / (1.5 * rate))
        loaded = await asyncio.gather(*pending)
    accepted = [seconds for seconds in loaded if seconds is not None]
    return _p99([seconds for seconds in alone if seconds is not None]), _p99(accepted), count - len(accepted)


async def _worker(graded: grading.Grading, slot: int, count: int) -> None:
    for item in _items([_BUSY] * count, f"saturate-{slot}"):
        await _seconds(graded, item)


async def _seconds(graded: grading.Grading, item: types.VerifyItem) -> float | None:
    started_s = time.perf_counter()
    try:
        (verdict,) = await graded.verify([item])
    except verify_service.OverloadedError:
        return None
    if verdict.outcome is not enums.VerifyOutcome.PASS:
        raise RuntimeError(f"a right program was {verdict.outcome}")
    return time.perf_counter() - started_s


def _p99(seconds: Sequence[float]) -> float:
    return statistics.quantiles(seconds, n=100)[-1]
