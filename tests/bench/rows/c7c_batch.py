"""C-7c: 1,024 answers in one batch through isolated workers, against plain processes of the same grader, one per core.

Every answer needs the symbolic engine, math-verify's, which `boxed` may ask, so both sides do the same work; the plain
processes have no supervisor, no limits and no wire. Their start is not counted, nor is ours. The bar is point 5 of
docs/design/graders.md#s-11.
"""

import asyncio
import multiprocessing
import os
import pathlib
import random
import time
from collections.abc import Sequence

from tests.bench import runner
from tests.bench.rows import c7_maths, maths_answers

from rljob_api import process_config
from rljob_workers.verifier.graders import base
from rljob_workers.verifier.graders.oat import oat_grader

ANSWERS = 1024
REWARD = process_config.GraderConfig(
    name="maths",
    type="boxed",
    mode="Compat",
    config={"verifierVersion": "math_verify"},
    cpu_limit_s=5.0,
    wall_limit_s=60.0,
)


class Plain:
    """A warm grader in each process of a plain pool."""

    grader: oat_grader.OatGrader

    @classmethod
    def warm(cls) -> None:
        """Make it."""
        cls.grader = oat_grader.OatGrader(REWARD)
        cls.grader.warm()

    @classmethod
    def score(cls, case: maths_answers.Case) -> float:
        """Grade one case."""
        completion, gold = case
        answer = base.Answer(prompt="", completion=completion, columns={"answer": gold})
        return cls.grader.grade(answer).score or 0.0


def roots(seed: int, count: int) -> list[maths_answers.Case]:
    """Return cases that no text and no exact number decides; about a third are wrong."""
    rng = random.Random(seed)
    values = [rng.randrange(2, 100_000) for _ in range(count)]
    return [(rf"so \boxed{{\sqrt{{{value * value}}}}}", str(value + rng.choice((0, 0, 1)))) for value in values]


def measure(size: str, out: pathlib.Path) -> Sequence[runner.Measured]:
    """Return the row: 3 pairs of 128 answers, or 9 pairs of 1,024; it writes nothing to `out`."""
    del out
    num_pairs, count = (9, ANSWERS) if size == "full" else (3, 128)
    pairs, differing = asyncio.run(_pairs(num_pairs, count))
    return [
        runner.Measured(
            row="C7c",
            title="one batch, answers/s of all cores",
            unit="answers/s",
            pairs=pairs,
            params={"answers": count, "processes": len(os.sched_getaffinity(0))},
            agreement=f"{differing} of {num_pairs * count} verdicts differ",
        )
    ]


async def _pairs(num_pairs: int, count: int) -> tuple[list[runner.Pair], int]:
    pairs, differing = [], 0
    cores = len(os.sched_getaffinity(0))
    spawn = multiprocessing.get_context("spawn")
    async with c7_maths.client_of(REWARD, num_slots=cores) as client:
        with spawn.Pool(cores, initializer=Plain.warm) as plain:
            await c7_maths.ours(client, roots(10_000, 8 * cores), "warm", batch=8 * cores)
            plain.map(Plain.score, roots(10_000, 8 * cores), chunksize=1)
            for seed in range(num_pairs):
                cases = roots(seed, count)
                first = random.Random(seed).choice(("ours", "peer"))
                rates: dict[str, float] = {}
                scores: dict[str, list[float]] = {}
                for side in (first, "peer" if first == "ours" else "ours"):
                    started_s = time.perf_counter()
                    if side == "ours":
                        verdicts = await c7_maths.ours(client, cases, f"batch-{seed}", batch=count)
                        scores[side] = [verdict.reward or 0.0 for verdict in verdicts]
                    else:
                        scores[side] = plain.map(Plain.score, cases)
                    rates[side] = count / (time.perf_counter() - started_s)
                pairs.append(runner.Pair(rates["ours"], rates["peer"], first))
                differing += sum(one != other for one, other in zip(scores["ours"], scores["peer"], strict=True))
    return pairs, differing
