"""A run at fixed speeds: what passes between the end of a step and the lease of the first group that its version lets
begin, and how long a step is against what its parts take.

The engine and the trainer sleep instead of computing, so that they share no core; coordinator, ledger, weight store,
publisher, receiver and every connection between them are the real ones. The engine decodes as many sequences at once as
a step has: the groups of one step take `generate_s` when nothing stands in their way, and no less.
"""

import asyncio
import dataclasses
import pathlib
import time
from collections.abc import Sequence

from rljob_api import enums, types
from rljob_testing import joined_run
from rljob_workers.rollout.engines import fake
from rljob_workers.rpc import work
from rljob_workers.runtime import clock as clocks

PROMPTS, GROUP, TOKENS = 4, 2, 20
# Until the rollout and the trainer keep pace with each other.
WARM_UP_STEPS = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Seconds that a step's update and the answers of a step's groups take; bound: maxOffPolicySteps.

    publish_s: seconds that a version is on its way besides, as one of a large model is.
    """

    train_s: float
    generate_s: float
    bound: int
    publish_s: float = 0.0

    @property
    def longer_s(self) -> float:
        """Return the seconds of the longer half."""
        return max(self.train_s, self.generate_s)

    @property
    def least_s(self) -> float:
        """Return the least seconds of a step that the bound allows, whatever else were free."""
        return max(self.longer_s, (self.train_s + self.generate_s + self.publish_s) / (self.bound + 1))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """When what happened, seconds of one clock [steps], the warm-up left out.

    trained: a step ended; registered, live: its version was registered, and served; leased: the first group that the
    bound kept back until then was leased. in_flight: sequences in the engine when the version was taken.
    """

    trained: Sequence[float]
    registered: Sequence[float]
    live: Sequence[float]
    leased: Sequence[float]
    in_flight: Sequence[int]

    def after_step(self, times: Sequence[float]) -> list[float]:
        """Return the seconds from the end of each step to `times`."""
        return [at - trained for at, trained in zip(times, self.trained, strict=True)]

    @property
    def period_s(self) -> float:
        """Return the seconds of a step, from end to end, on average."""
        return (self.trained[-1] - self.trained[0]) / (len(self.trained) - 1)


class TimedEngine(fake.FakeEngine):
    """Notes when each version is served, and how many sequences it found."""

    def __init__(self, *, clock: clocks.Clock, behavior: fake.Behavior) -> None:
        super().__init__(clock=clock, behavior=behavior)
        self._timed = clock
        self.live: dict[int, tuple[float, int]] = {}

    async def resume(self) -> None:
        await super().resume()
        if self._label is not None:
            self.live.setdefault(self._label, (self._timed.monotonic(), self.num_running()))


class TimedWork(work.WorkClient):
    """Notes when each group is leased, by its place among all."""

    def __init__(self, address: str, clock: clocks.Clock) -> None:
        super().__init__(address=address, tls=None)
        self._clock = clock
        self.leased: dict[int, float] = {}

    async def lease(self, **call: object) -> types.LeaseGrant:
        grant = await super().lease(**call)  # type: ignore[arg-type]
        self.leased.update((lease.lease_order, self._clock.monotonic()) for lease in grant.leases)
        return grant


async def measure(folder: pathlib.Path, speeds: Speeds, *, steps: int) -> Timeline:
    """Run `steps` steps beyond the warm-up in a new folder and return when what happened."""
    run = await asyncio.to_thread(
        joined_run.JoinedRun,
        folder,
        **{
            "algorithm.promptsPerStep": PROMPTS,
            "algorithm.groupSize": GROUP,
            "async.maxOffPolicySteps": speeds.bound,
            "rollout.sampling.maxTokens": TOKENS,
            "rollout.sampling.minTokens": TOKENS,
        },
    )
    clock = run.clock
    engine = TimedEngine(clock=clock, behavior=fake.Behavior(token_s=speeds.generate_s / TOKENS, slots=PROMPTS * GROUP))
    client = TimedWork(run.program.address, clock)
    trained: list[float] = []
    registered: dict[int, float] = {}

    def train() -> None:
        trainer = run.trainer()
        publish = trainer.transport.publish

        def register(version: types.WeightVersion, layout: types.Layout | None) -> types.VersionId:
            time.sleep(speeds.publish_s)
            head = publish(version, layout)
            registered[version.step] = clock.monotonic()
            return head

        vars(trainer.transport)["publish"] = register
        for step in range(1, WARM_UP_STEPS + steps + 2):
            assert trainer.fetch(step).kind is enums.BatchKind.BATCH, "the run has no end"
            time.sleep(speeds.train_s)
            trained.append(clock.monotonic())
            trainer.commit(step)
            trainer.publish(step)
        trainer.close()

    rollout = run.rollout(engine, client)
    working = asyncio.ensure_future(rollout.run())
    training = asyncio.ensure_future(asyncio.to_thread(train))
    try:
        done, _ = await asyncio.wait({working, training}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        rollout.hand_back()
        await asyncio.wait({working}, timeout=30.0)
        await client.close()
        await asyncio.to_thread(run.close)
    counted = range(WARM_UP_STEPS + 1, len(trained))
    return Timeline(
        trained=[trained[step - 1] for step in counted],
        registered=[registered[step] for step in counted],
        # A new run: the version of a step has its number.
        live=[engine.live[step][0] for step in counted],
        # Before the version of a step is registered, no more than this many groups may have been leased.
        leased=[client.leased[(speeds.bound + step) * PROMPTS + 1] for step in counted],
        in_flight=[engine.live[step][1] for step in counted],
    )
