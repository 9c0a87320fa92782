import asyncio

import pytest

from rljob_api import errors, types
from rljob_testing import rollout as fakes
from rljob_testing.clock import FakeClock
from rljob_workers.rollout import admission, fake_engine, generation


async def make_door(token_s: float = 1.0) -> tuple[admission.Admission, fake_engine.FakeEngine, FakeClock]:
    clock = FakeClock()
    engine = fake_engine.FakeEngine(clock=clock, behaviour=fake_engine.Behaviour(token_s=token_s))
    await engine.commit(types.VersionId(0))
    return admission.Admission(engine), engine, clock


async def test_requests_wait_in_front_of_a_closed_door_and_not_in_the_engine() -> None:
    door, engine, clock = await make_door()
    waiting = asyncio.ensure_future(door.generate(fakes.make_request()))
    await clock.advance(5.0)
    assert (engine.num_running(), door.num_inside) == (0, 0)
    door.open(types.VersionId(0))
    await clock.advance(5.0)
    assert len((await waiting).output_ids) == 4


async def test_drained_returns_when_the_last_request_is_out() -> None:
    door, _, clock = await make_door()
    door.open(types.VersionId(0))
    running = [
        asyncio.ensure_future(door.generate(fakes.make_request(rid, max_tokens=n))) for rid, n in [("a", 1), ("b", 3)]
    ]
    await clock.advance(0.5)
    door.close()
    drained = asyncio.ensure_future(door.drained())
    await clock.advance(1.0)
    assert (door.num_inside, drained.done()) == (1, False)
    await clock.advance(2.0)
    assert drained.done()
    await asyncio.gather(*running)


async def test_a_result_that_breaks_the_contract_never_reaches_an_episode() -> None:
    class Lying(fake_engine.FakeEngine):
        async def generate(
            self, request: generation.GenerationRequest, *, version: types.VersionId
        ) -> generation.GenerationResult:
            return generation.GenerationResult(output_ids=(4,), logprobs=(-9999.0,), versions=(0,), stop_reason="stop")

    door = admission.Admission(Lying(clock=FakeClock()))
    door.open(types.VersionId(0))
    with pytest.raises(errors.EngineError, match="-9999"):
        await door.generate(fakes.make_request())
    assert door.num_inside == 0


@pytest.mark.covers("workflows 2")
async def test_a_cancelled_request_leaves() -> None:
    door, engine, clock = await make_door()
    door.open(types.VersionId(0))
    running = asyncio.ensure_future(door.generate(fakes.make_request()))
    await clock.advance(0.5)
    running.cancel()
    await clock.advance(0.0)
    assert (door.num_inside, engine.num_running()) == (0, 0)


@pytest.mark.covers("workflows 1.2")
async def test_an_answer_tells_its_latency_its_first_tokens_and_the_time_between_any_two() -> None:
    door, _, clock = await make_door(token_s=2.0)
    door.open(types.VersionId(0))
    running = asyncio.ensure_future(door.generate(fakes.make_request(max_tokens=4)))
    await clock.advance(8.0)
    result = await running
    assert (result.latency_s, result.ttft_s, result.itl_s) == (8.0, 2.0, (2.0, 2.0, 2.0))
