"""`python -m tests.bench.soak --executions 50000`: mixed programs through a verifier, and what is left of them.

Prints processes, descriptors, files and memory before and after. Exit 1 if anything was left, or a verdict was wrong.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import AsyncIterator, Sequence

from tests.bench.rows import c7_maths

from rljob_api import enums, process_config, types
from rljob_workers.verifier import grading
from rljob_workers.verifier.sandbox.processes import procfs

_O = enums.VerifyOutcome
_COLUMNS = {"query_id": "q", "input_output": json.dumps({"inputs": ["1 2"], "outputs": ["3"]})}
# Program, how often in a hundred, and the outcomes that are right.
MIX: Sequence[tuple[str, int, frozenset[enums.VerifyOutcome]]] = (
    ("print(sum(map(int, input().split())))", 60, frozenset((_O.PASS,))),
    ("print(4)", 20, frozenset((_O.FAIL,))),
    ("raise ValueError", 7, frozenset((_O.FAIL,))),
    ("import os\nos.kill(os.getpid(), 9)", 4, frozenset((_O.FORCED_EXIT,))),
    ("while True:\n    print('x' * 65536)", 3, frozenset((_O.OUTPUT_FLOOD,))),
    ("kept = bytearray(1 << 34)\nprint(3)", 2, frozenset((_O.FAIL, _O.OOM))),
    ("import os, signal\nif os.fork() == 0:\n    signal.pause()\nsignal.pause()", 1, frozenset((_O.TIMEOUT_WALL,))),
    ("import os, signal\nprint(3, flush=True)\nif os.fork() == 0:\n    signal.pause()", 1, frozenset((_O.PASS,))),
    ("import ctypes\nctypes.CDLL(None).ptrace(16, 1, 0, 0)", 1, frozenset((_O.FORBIDDEN,))),
    ("import os\nwhile True:\n    os.fork()", 1, frozenset((_O.OOM,))),
)  # fmt: skip
WARM_UP = 200
_SETTLE_S = 30.0
_WAVE = 64
_FOLDERS = ("/tmp", "/dev/shm", "/var/tmp")  # where a program would leave a file


@dataclasses.dataclass(frozen=True, slots=True)
class Left:
    """What there is: processes of the verifier's tree, its descriptors, files where programs could leave some, and the
    resident memory of its largest grading worker and of itself.
    """

    processes: int
    descriptors: int
    files: frozenset[str]
    worker_bytes: int
    service_bytes: int


def left() -> Left:
    """Look at this process and its tree."""
    tree = procfs.tree(os.getpid())
    workers = [procfs.resident_bytes(pid) for pid in procfs.children(os.getpid()) & tree]
    files = {str(path) for folder in _FOLDERS for path in pathlib.Path(folder).glob("*")}
    return Left(
        processes=len(tree),
        descriptors=len(os.listdir("/proc/self/fd")),
        files=frozenset(files),
        worker_bytes=max(workers, default=0),
        service_bytes=procfs.resident_bytes(os.getpid()),
    )


def cycle(count: int) -> list[tuple[str, frozenset[enums.VerifyOutcome]]]:
    """Return `count` programs and their outcomes, mixed evenly: the rare ones are spread, not bunched."""
    hundred = [(program, outcomes) for program, share, outcomes in MIX for _ in range(share)]
    # 37 and 100 have no common divisor: each of the hundred comes once.
    return [hundred[number * 37 % len(hundred)] for number in range(count)]


@contextlib.asynccontextmanager
async def verifier(num_slots: int) -> AsyncIterator[grading.Grading]:
    """Yield a verifier's grading of programs that may fork, with short limits."""
    reward = process_config.GraderConfig(name="soak", type="areal-code", cpu_limit_s=0.5, wall_limit_s=5.0)
    async with c7_maths.verifier_of(reward, num_slots=num_slots) as made:
        yield made.grading


async def run(graded: grading.Grading, count: int, name: str) -> list[str]:
    """Run so many programs, and return a line for each verdict that is neither right nor no one's fault."""
    wrong: list[str] = []
    asked = cycle(count)
    for start in range(0, count, _WAVE):
        wave = asked[start : start + _WAVE]
        items = [
            types.VerifyItem(
                sample_id=f"{name}-{start + index}",
                attempt=0,
                prompt="",
                completion=f"```python\n{program}\n```",
                columns=_COLUMNS,
            )
            for index, (program, _) in enumerate(wave)
        ]
        verdicts = await graded.verify(items)
        wrong += [
            f"{verdict.outcome}: {program!r}"
            for verdict, (program, outcomes) in zip(verdicts, wave, strict=True)
            if verdict.outcome not in {*outcomes, _O.INFRA_ERROR}
        ]
    return wrong


async def settled(wanted: Left) -> Left:
    """Return what is left once it is no more than wanted, or after 30 s: replaced workers take a moment to be there."""
    now = left()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_SETTLE_S):
            while now.processes > wanted.processes or now.descriptors > wanted.descriptors:
                await asyncio.sleep(0.1)
                now = left()
    return now


async def soak(executions: int, num_slots: int) -> tuple[Left, Left, list[str]]:
    """Return what there was before and after, and the wrong verdicts."""
    async with verifier(num_slots) as graded:
        wrong = await run(graded, WARM_UP, "warm-up")
        await asyncio.sleep(1.0)
        before = left()
        wrong += await run(graded, executions, "soak")
        after = await settled(before)
    return before, after, wrong


def main() -> int:
    """Run the soak and print it."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.soak", description=__doc__)
    parser.add_argument("--executions", type=int, default=50_000)
    parser.add_argument("--slots", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    before, after, wrong = asyncio.run(soak(arguments.executions, arguments.slots))
    for what in ("processes", "descriptors", "worker_bytes", "service_bytes"):
        print(f"{what}: {getattr(before, what)} before, {getattr(after, what)} after")
    new = sorted(after.files - before.files)
    print(f"files that are new in {', '.join(_FOLDERS)}: {len(new)} {new[:5]}")
    print(f"wrong verdicts: {len(wrong)} {sorted(set(wrong))[:5]}")
    leaked = after.processes > before.processes or after.descriptors > before.descriptors
    return int(leaked or bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
