"""C-7a and C-7b: grading mathematics through the gRPC service with isolated workers, against math-verify in-process.

C-7a: verdicts a second on one core: client, service and workers share the core that math-verify has alone. C-7b: wall
seconds on a hostile set; math-verify gets a process per answer, ended after `PEER_LIMIT_S`, and its imports are not
counted. After the hostile set 100 easy answers must be graded right; a wrong verdict breaks the row.
"""

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence

from tests.bench import runner
from tests.bench.rows import math_verify_peer, maths_answers

from rljob_api import enums, process_config, types
from rljob_workers.rpc import verify
from rljob_workers.runtime import clock
from rljob_workers.verifier import service

PEER_LIMIT_S = 30.0
REWARD = process_config.GraderConfig(name="maths", type="math", cpu_limit_s=5.0, wall_limit_s=15.0)
BATCH = 128
ANSWERS_AFTERWARDS = 100


def easy(size: str) -> Sequence[runner.Measured]:
    """Measure C-7a: 3 pairs of 300 answers, or 9 pairs of 4,000."""
    pairs_wanted, count = (9, 4000) if size == "full" else (3, 300)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        pairs, differences = asyncio.run(_easy_pairs(pairs_wanted, count))
    finally:
        os.sched_setaffinity(0, cores)
    return [
        runner.Measured(
            row="C7a",
            title="maths verdicts/s of one core",
            unit="verdicts/s",
            pairs=pairs,
            params={"answers": count, "batch": BATCH},
            agreement=f"{len(differences)} of {pairs_wanted * count} verdicts differ",
            notes=[f"answer {case[0]!r}, gold {case[1]!r}: ours {ours}" for case, ours in differences[:5]],
        )
    ]


def hostile(size: str) -> Sequence[runner.Measured]:
    """Measure C-7b: one pair over 3 answers, or 3 pairs over all."""
    repeats, texts = (3, maths_answers.HOSTILE) if size == "full" else (1, maths_answers.HOSTILE[:3])
    cases = [(rf"\boxed{{{text}}}", "5") for text in texts]
    pairs, notes = asyncio.run(_hostile_pairs(repeats, cases))
    return [
        runner.Measured(
            row="C7b",
            title="wall on the hostile set",
            unit="s",
            pairs=pairs,
            params={"answers": len(cases), "peer_limit_s": PEER_LIMIT_S},
            agreement=f"all hostile answers 0; {ANSWERS_AFTERWARDS} easy answers afterwards right",
            notes=notes,
        )
    ]


async def _easy_pairs(count_pairs: int, count: int) -> tuple[list[runner.Pair], list[tuple[maths_answers.Case, bool]]]:
    pairs, differences = [], []
    async with client_of(REWARD, num_slots=1) as client:
        await ours(client, maths_answers.easy(BATCH, seed=10_000), "warm")
        math_verify_peer.verdicts(maths_answers.easy(BATCH, seed=10_000))
        for seed in range(count_pairs):
            cases = maths_answers.easy(count, seed)
            first = random.Random(seed).choice(("ours", "peer"))
            rates: dict[str, float] = {}
            said: dict[str, list[bool]] = {}
            for side in (first, "peer" if first == "ours" else "ours"):
                started_s = time.perf_counter()
                if side == "ours":
                    said[side] = [verdict.reward == 1.0 for verdict in await ours(client, cases, f"easy-{seed}")]
                else:
                    said[side] = math_verify_peer.verdicts(cases)
                rates[side] = count / (time.perf_counter() - started_s)
            pairs.append(runner.Pair(rates["ours"], rates["peer"], first))
            both = zip(cases, said["ours"], said["peer"], strict=True)
            differences += [(case, ours) for case, ours, peer in both if ours != peer]
    return pairs, differences


async def _hostile_pairs(repeats: int, cases: Sequence[maths_answers.Case]) -> tuple[list[runner.Pair], list[str]]:
    pairs, notes = [], []
    async with client_of(REWARD, num_slots=1) as client:
        for repeat in range(repeats):
            started_s = time.perf_counter()
            verdicts = await ours(client, cases, f"hostile-{repeat}")
            ours_s = time.perf_counter() - started_s
            if any(verdict.reward != 0.0 for verdict in verdicts):
                raise RuntimeError(f"a hostile answer was not scored 0: {[verdict.reason for verdict in verdicts]}")
            walls = [_peer_wall_s(case) for case in cases]
            pairs.append(runner.Pair(ours_s, sum(walls)))
            notes.append(f"reasons {sorted({str(verdict.reason) for verdict in verdicts})}; {_hangs(walls)} peer hangs")
            await _still_right(client, repeat)
    return pairs, notes


def _hangs(walls: Sequence[float]) -> int:
    return sum(wall >= PEER_LIMIT_S for wall in walls)


async def _still_right(client: verify.GradingClient, repeat: int) -> None:
    cases = [(rf"\boxed{{{value}}}", str(value + value % 2)) for value in range(ANSWERS_AFTERWARDS)]
    verdicts = await ours(client, cases, f"after-{repeat}")
    if [verdict.reward for verdict in verdicts] != [float(value % 2 == 0) for value in range(ANSWERS_AFTERWARDS)]:
        raise RuntimeError("an easy answer after the hostile set was graded wrong")


def _peer_wall_s(case: maths_answers.Case) -> float:
    command = [sys.executable, "-m", "tests.bench.rows.math_verify_peer"]
    try:
        done = subprocess.run(
            command, input=json.dumps(case), capture_output=True, text=True, timeout=PEER_LIMIT_S, check=True
        )
    except subprocess.TimeoutExpired:
        return PEER_LIMIT_S
    return float(done.stdout.split()[-1])


async def ours(
    client: verify.GradingClient, cases: Sequence[maths_answers.Case], name: str, *, batch: int = BATCH
) -> list[types.Verdict]:
    """Return the service's verdicts on cases, sent `batch` at a time; `name` makes their sample ids."""
    items = [
        types.VerifyItem(
            sample_id=f"{name}-{index}", attempt=0, prompt="", completion=completion, columns={"answer": gold}
        )
        for index, (completion, gold) in enumerate(cases)
    ]
    batches = [items[start : start + batch] for start in range(0, len(items), batch)]
    return [verdict for some in batches for verdict in await client.verify(some)]


@contextlib.asynccontextmanager
async def verifier_of(
    reward: process_config.GraderConfig, *, num_slots: int, extra: Sequence[str] = (), max_waiting: int = 4096
) -> AsyncIterator[service.Service]:
    """Yield a verifier in this process with that reward and that many workers; `extra`: further types of rewards."""
    config = process_config.VerifierConfig(
        job=process_config.JobIdentity(name="bench", namespace="bench", uid="bench"),
        role=enums.Role.VERIFIER,
        pod="verifier-0",
        health_host="127.0.0.1",
        health_port=0,
        scratch_dir="/nonexistent",
        bind_host="127.0.0.1",
        port=0,
        rewards=(reward,),
        num_slots=num_slots,
        max_waiting=max_waiting,
    )
    verifier = service.Service(config, extra=extra)
    try:
        await verifier.start()
        yield verifier
    finally:
        await verifier.close()


@contextlib.asynccontextmanager
async def client_of(reward: process_config.GraderConfig, *, num_slots: int) -> AsyncIterator[verify.GradingClient]:
    """Yield a client of a verifier in this process with that reward and that many workers."""
    async with verifier_of(reward, num_slots=num_slots) as verifier:
        client = verify.GradingClient(
            addresses=[f"127.0.0.1:{verifier.port}"],
            tls=None,
            timeout_s=600.0,
            max_attempts=2,
            clock=clock.SystemClock(),
        )
        try:
            yield client
        finally:
            await client.close()
