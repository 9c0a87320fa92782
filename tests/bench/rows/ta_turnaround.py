"""TA: what passes between the end of a step and the lease of the first group that its version lets begin, and a step's
seconds against those of its longer half, training or generation; TA3 against the least that the bound allows where
versions come late.

Both halves sleep for a fixed time, so that what is measured is what the system adds (turnaround.py says what is real).
At bound b the groups of step k begin once step k - 1 - b is trained and its version served, turnaround T later: a step
takes at least max(train, generate, (train + generate + T) / (b + 1)). At bound 1 with equal halves that is
train + T / 2, so a ratio of 1.1 can be had for T up to a fifth of a half; from bound 2 on T is hidden, as long as it is
less than the longer half.
"""

import asyncio
import dataclasses
import pathlib
import shutil
import statistics
from collections.abc import Iterator, Sequence

from tests.bench import runner, turnaround

BOUNDS = (1, 2, 4)
MOST_TURNAROUND_S = 1.0
# Seconds of training and of generation: equal, and either one the longer.
EQUAL = (2.0, 2.0)
UNEQUAL = ((2.0, 1.0), (1.0, 2.0))
# Seconds that a version is on its way in TA3.
LATE_S = 1.0
STEPS = {"smoke": 6, "full": 24}


def measure(size: str, out: pathlib.Path) -> Sequence[runner.Measured]:
    """Return rows for each bound and each pair of speeds; `smoke` has equal ones only, and no late versions."""
    return list(_rows(size, out / "turnaround"))


def _rows(size: str, out: pathlib.Path) -> Iterator[runner.Measured]:
    for bound in BOUNDS:
        for train_s, generate_s in (EQUAL, *(UNEQUAL if size == "full" else ())):
            speeds = turnaround.Speeds(train_s=train_s, generate_s=generate_s, bound=bound)
            yield from _judged(speeds, _timeline(speeds, size, out))
    for bound in BOUNDS[:2] if size == "full" else ():
        train_s, generate_s = EQUAL
        speeds = turnaround.Speeds(train_s=train_s, generate_s=generate_s, bound=bound, publish_s=LATE_S)
        timeline = _timeline(speeds, size, out)
        yield runner.Measured(
            row="TA3", title=f"seconds a step against the least possible; {_which(speeds)}", unit="s",
            pairs=[runner.Pair(timeline.period_s, speeds.least_s)], params=_params(speeds, timeline),
            notes=[f"{timeline.period_s / speeds.longer_s:.3f} of the longer half"],
        )  # fmt: skip


def _timeline(speeds: turnaround.Speeds, size: str, out: pathlib.Path) -> turnaround.Timeline:
    folder = out / f"bound-{speeds.bound}-{speeds.train_s:g}-{speeds.generate_s:g}-{speeds.publish_s:g}"
    shutil.rmtree(folder, ignore_errors=True)
    return asyncio.run(turnaround.measure(folder, speeds, steps=STEPS[size]))


def _which(speeds: turnaround.Speeds) -> str:
    late = f", versions {speeds.publish_s:g} s late" if speeds.publish_s else ""
    return f"bound {speeds.bound}, train {speeds.train_s:g} s, generate {speeds.generate_s:g} s{late}"


def _params(speeds: turnaround.Speeds, timeline: turnaround.Timeline) -> dict[str, object]:
    return {**dataclasses.asdict(speeds), "steps": len(timeline.trained)}


def _judged(speeds: turnaround.Speeds, timeline: turnaround.Timeline) -> Iterator[runner.Measured]:
    which, params = _which(speeds), _params(speeds, timeline)
    phases = [
        f"{name} {statistics.median(timeline.after_step(times)):.3f} s after the end of a step"
        for name, times in (("registered", timeline.registered), ("live", timeline.live), ("leased", timeline.leased))
    ]
    yield runner.Measured(
        row="TA1", title=f"end of step to first lease, p50 against 1 s; {which}", unit="s",
        pairs=[runner.Pair(statistics.median(timeline.after_step(timeline.leased)), MOST_TURNAROUND_S)],
        params=params, notes=phases,
    )  # fmt: skip
    yield runner.Measured(
        row="TA2", title=f"seconds a step against its longer half; {which}", unit="s",
        pairs=[runner.Pair(timeline.period_s, speeds.longer_s)],
        params=params, notes=[f"sequences in flight at each version: {list(timeline.in_flight)}"],
    )  # fmt: skip
