import asyncio
import dataclasses

import pytest

from rljob_api import errors, types
from rljob_testing import rollout as fakes
from rljob_testing.clock import FakeClock
from rljob_workers.rollout import generation, request_gate
from rljob_workers.rollout.engines import fake


async def make_gate(token_s: float = 1.0) -> tuple[request_gate.RequestGate, fake.FakeEngine, FakeClock]:
    clock = FakeClock()
    engine = fake.FakeEngine(clock=clock, behavior=fake.Behavior(token_s=token_s))
    await engine.commit(types.VersionId(0))
    return request_gate.RequestGate(engine), engine, clock


async def test_requests_wait_in_front_of_a_closed_gate_and_not_in_the_engine() -> None:
    gate, engine, clock = await make_gate()
    waiting = asyncio.ensure_future(gate.generate(fakes.make_request()))
    await clock.advance(5.0)
    assert (engine.num_running(), gate.num_in_flight) == (0, 0)
    gate.open(types.VersionId(0))
    await clock.advance(5.0)
    assert len((await waiting).output_ids) == 4


async def test_drained_returns_when_the_last_request_is_out() -> None:
    gate, _, clock = await make_gate()
    gate.open(types.VersionId(0))
    running = [
        asyncio.ensure_future(gate.generate(fakes.make_request(rid, max_tokens=n))) for rid, n in [("a", 1), ("b", 3)]
    ]
    await clock.advance(0.5)
    gate.close()
    drained = asyncio.ensure_future(gate.drained())
    await clock.advance(1.0)
    assert (gate.num_in_flight, drained.done()) == (1, False)
    await clock.advance(2.0)
    assert drained.done()
    await asyncio.gather(*running)


async def test_a_result_that_breaks_the_contract_never_reaches_an_episode() -> None:
    class Lying(fake.FakeEngine):
        async def generate(
            self, request: generation.GenerationRequest, *, version: types.VersionId
        ) -> generation.GenerationResult:
            return generation.GenerationResult(output_ids=(4,), logprobs=(-9999.0,), versions=(0,), stop_reason="stop")

    gate = request_gate.RequestGate(Lying(clock=FakeClock()))
    gate.open(types.VersionId(0))
    with pytest.raises(errors.EngineError, match="-9999"):
        await gate.generate(fakes.make_request())
    assert gate.num_in_flight == 0


@pytest.mark.covers("workflows 2")
async def test_a_cancelled_request_leaves() -> None:
    gate, engine, clock = await make_gate()
    gate.open(types.VersionId(0))
    running = asyncio.ensure_future(gate.generate(fakes.make_request()))
    await clock.advance(0.5)
    running.cancel()
    await clock.advance(0.0)
    assert (gate.num_in_flight, engine.num_running()) == (0, 0)


@pytest.mark.covers("workflows 1.2")
async def test_an_answer_tells_its_latency_its_first_tokens_and_the_time_between_any_two() -> None:
    gate, _, clock = await make_gate(token_s=2.0)
    gate.open(types.VersionId(0))
    running = asyncio.ensure_future(gate.generate(fakes.make_request(max_tokens=4)))
    await clock.advance(8.0)
    result = await running
    assert (result.latency_s, result.ttft_s, result.itl_s) == (8.0, 2.0, (2.0, 2.0, 2.0))


async def test_where_not_all_requests_decode_at_once_those_of_earlier_groups_come_first() -> None:
    clock, events = FakeClock(), list[str]()
    gate = request_gate.RequestGate(fake.FakeEngine(clock=clock, behavior=fake.Behavior(token_s=1.0, slots=1)))
    gate.open(types.VersionId(0))

    async def ask(rid: str, priority: int) -> None:
        await gate.generate(dataclasses.replace(fakes.make_request(rid, max_tokens=2), priority=priority))
        events.append(rid)

    await gate._engine.commit(types.VersionId(0))
    tasks = [asyncio.ensure_future(ask(rid, priority)) for rid, priority in [("a", 3), ("b", 5), ("c", 4), ("d", 4)]]
    await clock.advance(2.5)
    tasks[3].cancel()
    await clock.advance(10.0)
    assert events == ["a", "c", "b"]
