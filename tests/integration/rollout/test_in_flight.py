"""Sequences cross an update of the weights: the real coordinator and store, an engine without a model."""

import asyncio
import pathlib

from rljob_api import enums, types
from rljob_testing import joined_run
from rljob_workers.rollout import generation
from rljob_workers.rollout.engines import fake
from rljob_workers.rpc import work
from rljob_workers.runtime import clock as clocks

TOKENS, PROMPTS, GROUP = 4, 2, 2


class HeldClock(clocks.SystemClock):
    """Whoever sleeps does so until it is let go on."""

    def __init__(self) -> None:
        self._allowed = asyncio.Semaphore(0)

    def allow(self, sleeps: int) -> None:
        for _ in range(sleeps):
            self._allowed.release()

    async def sleep(self, seconds: float) -> None:
        if seconds > 0:
            await self._allowed.acquire()
            # The others take their turn.
            await asyncio.sleep(0)


class Engine(fake.FakeEngine):
    """Says when two steps' sequences are inside, and when it serves version 1."""

    def __init__(self, *, clock: clocks.Clock, behavior: fake.Behavior) -> None:
        super().__init__(clock=clock, behavior=behavior)
        self.full, self.taken = asyncio.Event(), asyncio.Event()
        self._version = self._arrived = 0

    async def generate(
        self, request: generation.GenerationRequest, *, version: types.VersionId
    ) -> generation.GenerationResult:
        self._arrived += 1
        if self._arrived == 2 * PROMPTS * GROUP:
            self.full.set()
        return await super().generate(request, version=version)

    async def commit(self, version: types.VersionId) -> None:
        await super().commit(version)
        self._version = version

    async def resume(self) -> None:
        await super().resume()
        if self._version == 1:
            self.taken.set()


async def test_at_bound_1_the_groups_of_the_next_step_are_in_flight_when_a_version_is_taken(
    tmp_path: pathlib.Path,
) -> None:
    run = await asyncio.to_thread(
        joined_run.JoinedRun,
        tmp_path,
        **{
            "algorithm.promptsPerStep": PROMPTS,
            "algorithm.groupSize": GROUP,
            "async.maxOffPolicySteps": 1,
            "rollout.sampling.maxTokens": TOKENS,
            "rollout.sampling.minTokens": TOKENS,
        },
    )
    step = PROMPTS * GROUP
    clock = HeldClock()
    # Room for the sequences of one step: those of the next wait for them in the engine.
    engine = Engine(clock=clock, behavior=fake.Behavior(token_s=1.0, slots=step))
    client = work.WorkClient(address=run.program.address, tls=None)
    trainer = await asyncio.to_thread(run.trainer)
    rollout = run.rollout(engine, client)
    working = asyncio.ensure_future(rollout.run())
    await engine.full.wait()
    clock.allow(step * TOKENS)
    assert (await asyncio.to_thread(trainer.fetch, 1)).kind is enums.BatchKind.BATCH
    # Half of each sequence of the second step.
    clock.allow(step * TOKENS // 2)
    await asyncio.to_thread(trainer.commit, 1)
    await asyncio.to_thread(trainer.publish, 1)
    await engine.taken.wait()
    clock.allow(step * TOKENS * 10)
    assert (await asyncio.to_thread(trainer.fetch, 2)).kind is enums.BatchKind.BATCH
    await asyncio.to_thread(trainer.commit, 2)
    rollout.hand_back()
    await working
    await client.close()
    await asyncio.to_thread(trainer.close)
    await asyncio.to_thread(run.close)
    history = run.history()
    (sync,) = [line for line in history if line["kind"] == "weight_sync" and line["version"] == 1]
    assert (sync["requests_in_flight"], sync["failure"]) == (step, "")
    steps = [line for line in history if line["kind"] == "step"]
    # Their first half was sampled by version 0, when it was the newest, and is one step old where it is trained.
    assert [line["staleness"] for line in steps] == [{"0": PROMPTS}, {"1": PROMPTS}]
