"""The failure table of docs/design/weights.md#s-8, on the fake engine: every pause ends, no mixture is served."""

import asyncio
import dataclasses

import pytest

from rljob_api import errors, types
from rljob_api.enums import ReceiverState
from rljob_testing import rollout as fakes
from rljob_testing.clock import FakeClock
from rljob_workers.rollout import request_gate
from rljob_workers.rollout.engines import fake
from rljob_workers.rollout.sync import receiver, staging

OPTIONS = receiver.UpdateOptions(in_flight=True, recompute=False, pause_deadline_s=10.0, restart_deadline_s=600.0)
GOOD = ["pause", "load 1 tensors", "verify", "commit 1", "resume"]
REPAIRED = ["pause", "abort_all", "repair", "load 1 tensors", "verify", "commit 1", "resume"]
RESTARTED = ["restart", "commit 0", *GOOD]


class Rig:
    """A receiver with everything around it faked."""

    def __init__(self, behavior: fake.Behavior | None = None, options: receiver.UpdateOptions = OPTIONS) -> None:
        self.clock = FakeClock()
        self.events: list[str] = []
        self.engine = fake.FakeEngine(clock=self.clock, behavior=behavior, events=self.events)
        self.gate = request_gate.RequestGate(self.engine)
        self.stager = fakes.FakeStager(self.events)
        self.receiver = receiver.WeightReceiver(
            engine=self.engine,
            gate=self.gate,
            stager=self.stager,
            options=options,
            clock=self.clock,
            on_pause=lambda paused: self.events.append("generation stops" if paused else "generation goes on"),
            to_thread=fakes.at_once,
        )
        self.task: asyncio.Task[None] | None = None

    async def start(self, head: int = 0) -> None:
        token = types.SessionToken("s")
        session = types.Session(token=token, head_version=types.VersionId(head), head_step=head, heartbeat_s=1.0)
        await self.receiver.start(session)
        self.task = asyncio.ensure_future(self.receiver.run())
        self.events.clear()

    async def take(self, version: int, seconds: float = 0.0) -> None:
        self.receiver.want(types.VersionId(version))
        await self.clock.advance(seconds)

    def engine_calls(self) -> list[str]:
        seams = ("stage", "generation", "generate", "died")
        return [event for event in self.events if not event.startswith(seams)]


@pytest.mark.covers("weights 8", "weights W-2")
async def test_update_stages_first_then_pauses_loads_verifies_labels_and_resumes() -> None:
    rig = Rig()
    await rig.start()
    await rig.take(1)
    assert rig.events == ["stage 1", "generation stops", *GOOD, "generation goes on"]
    assert rig.receiver.served == receiver.Served(version=types.VersionId(1), step=1)
    assert rig.receiver.state is ReceiverState.SERVING


@pytest.mark.covers("weights W-7")
async def test_start_labels_the_initial_weights_and_loads_the_head_before_the_gate_opens() -> None:
    rig = Rig()
    opened: list[bool] = []
    rig.receiver._on_pause = lambda paused: opened.append(rig.gate.is_open)  # the seam that is called around the swap
    await rig.start(head=3)
    assert opened == [False, False]
    assert rig.gate.is_open
    assert rig.receiver.served.version == 3


async def test_start_keeps_the_gate_closed_while_the_head_cannot_be_had() -> None:
    rig = Rig()
    rig.stager.faults = [errors.UnavailableError("store is down"), errors.UnavailableError("still down")]
    starting = asyncio.ensure_future(rig.start(head=3))
    await rig.clock.advance(0.1)
    assert not rig.gate.is_open
    await rig.clock.advance(5.0)
    await starting
    assert rig.gate.is_open
    assert rig.receiver.served.version == 3


@pytest.mark.covers("weights 11")
async def test_report_measures_fetch_verify_pause_apply_and_requests_in_flight() -> None:
    latency = {"pause": 0.125, "load": 0.25, "verify": 0.0625, "resume": 0.5}
    rig = Rig(fake.Behavior(token_s=1.0, latency_s=latency))
    await rig.start()
    running = asyncio.ensure_future(rig.gate.generate(fakes.make_request(max_tokens=3)))
    await rig.clock.advance(0.5)
    await rig.take(1, 2.0)
    (sync,) = rig.receiver.syncs
    assert (sync.version, sync.step, sync.failure) == (1, 1, "")
    assert (sync.fetch_s, sync.verify_s, sync.num_bytes) == (0.5, 0.25, 64)
    assert sync.pause_s == pytest.approx(0.125 + 0.25 + 0.0625 + 0.5)
    assert sync.apply_s == pytest.approx(0.25 + 0.0625 + 0.5)
    assert sync.requests_in_flight == 1
    await rig.clock.advance(5.0)
    assert (await running).versions == (1, 1, 1)


@pytest.mark.covers("workflows 1.2", "workflows 13")
@pytest.mark.covers("weights W-3")
async def test_tokens_of_one_sequence_carry_the_version_that_sampled_each() -> None:
    rig = Rig(fake.Behavior(token_s=1.0))
    await rig.start()
    running = asyncio.ensure_future(rig.gate.generate(fakes.make_request(max_tokens=4)))
    await rig.clock.advance(2.5)
    await rig.take(1)
    await rig.clock.advance(5.0)
    assert (await running).versions == (0, 0, 1, 1)


@pytest.mark.covers("weights 9")
async def test_a_request_that_waited_at_the_gate_is_salted_with_the_new_version() -> None:
    rig = Rig(fake.Behavior(latency_s={"load": 1.0}))
    await rig.start()
    await rig.take(1, 0.5)
    waiting = asyncio.ensure_future(rig.gate.generate(fakes.make_request(max_tokens=1)))
    await rig.clock.advance(0.1)
    assert "generate salt 0" not in rig.events
    await rig.clock.advance(2.0)
    assert (await waiting).versions == (1,)
    assert "generate salt 1" in rig.events


async def test_without_in_flight_updates_running_requests_finish_first() -> None:
    rig = Rig(fake.Behavior(token_s=1.0), dataclasses.replace(OPTIONS, in_flight=False))
    await rig.start()
    running = asyncio.ensure_future(rig.gate.generate(fakes.make_request(max_tokens=3)))
    await rig.clock.advance(0.5)
    await rig.take(1, 1.0)
    assert "pause" not in rig.events
    await rig.clock.advance(2.0)
    assert (await running).versions == (0, 0, 0)
    assert rig.receiver.served.version == 1


@pytest.mark.covers("weights 9")
async def test_recompute_clears_the_cache_at_the_pause() -> None:
    rig = Rig(options=dataclasses.replace(OPTIONS, recompute=True))
    await rig.start()
    await rig.take(1)
    assert "pause and clear" in rig.events


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (errors.DigestError("tensor w does not match its digest"), "digest"),
        (errors.WeightsError("another layout"), "fetch"),
        (errors.UnavailableError("source died"), "fetch"),
    ],
)
@pytest.mark.covers("weights 8-12")
async def test_a_failed_fetch_touches_nothing_is_reported_and_tried_again(
    fault: errors.RLJobError, reason: str
) -> None:
    rig = Rig()
    await rig.start()
    rig.stager.faults = [fault]
    await rig.take(1)
    assert rig.engine_calls() == []
    assert (rig.receiver.state, rig.receiver.served.version) == (ReceiverState.SERVING, 0)
    assert rig.gate.is_open
    assert [sync.failure for sync in rig.receiver.syncs] == [f"{reason}: {fault.name}: {fault}"]
    await rig.clock.advance(1.0)
    assert rig.engine_calls() == GOOD


async def test_a_superseded_version_is_skipped() -> None:
    rig = Rig()
    await rig.start()
    rig.stager.faults = [errors.UnavailableError("pruned")]
    await rig.take(1)
    await rig.take(2)
    await rig.clock.advance(1.0)
    assert [event for event in rig.events if event.startswith("stage")] == ["stage 1", "stage 2"]


BROKEN: dict[str, tuple[dict[str, list[str | None]], list[str]]] = {
    "pause fails: one resume, the old version goes on, then tried again": (
        {"pause": ["refused"]},
        ["pause", "resume", *GOOD],
    ),
    "pause hangs: the watchdog ends it with one resume": ({"pause": ["hang"]}, ["pause", "resume", *GOOD]),
    "pause and resume fail: forward recovery on the same engine": (
        {"pause": ["refused"], "resume": ["refused"]},
        ["pause", "resume", *REPAIRED],
    ),
    "load raises midway: forward recovery": ({"load": ["shape"]}, [*GOOD[:2], *REPAIRED]),
    "load hangs: the watchdog, then forward recovery": ({"load": ["hang"]}, [*GOOD[:2], *REPAIRED]),
    "verify fails: forward recovery": ({"verify": ["left over"]}, [*GOOD[:3], *REPAIRED]),
    "label fails: forward recovery": ({"commit": [None, "lost"]}, [*GOOD[:4], *REPAIRED]),
    "resume fails: forward recovery": ({"resume": ["lost"]}, [*GOOD, *REPAIRED]),
    "resume hangs: the watchdog, then forward recovery": ({"resume": ["hang"]}, [*GOOD, *REPAIRED]),
    "verify fails twice: engine restart": ({"verify": ["a", "b"]}, [*GOOD[:3], *REPAIRED[:5], *RESTARTED]),
    "repair fails: engine restart": ({"load": ["a"], "repair": ["b"]}, [*GOOD[:2], *REPAIRED[:3], *RESTARTED]),
}


@pytest.mark.parametrize("sentence", BROKEN)
@pytest.mark.covers("weights W-5", "weights W-16", "weights 8-7", "weights 8-8", "weights 8-9", "weights 8-11")
async def test_every_pause_ends_on_one_whole_version(sentence: str) -> None:
    faults, expected = BROKEN[sentence]
    rig = Rig(fake.Behavior(faults=faults))
    await rig.start()
    await rig.take(1, 60.0)
    # The fake engine itself asserts that nothing resumes or is labelled on mixed weights.
    assert rig.engine_calls() == expected
    assert (rig.receiver.state, rig.receiver.served.version) == (ReceiverState.SERVING, 1)
    assert rig.gate.is_open
    assert rig.events.count("generation stops") == rig.events.count("generation goes on")
    result = await asyncio.gather(rig.gate.generate(fakes.make_request(max_tokens=1)))
    assert result[0].versions == (1,)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [({"pause": ["refused"]}, "apply"), ({"load": ["hang"]}, "timeout"), ({"load": ["x"]}, "apply")],
)
async def test_an_update_that_broke_is_told_even_where_the_next_attempt_mends_it(
    fault: dict[str, list[str | None]], reason: str
) -> None:
    rig = Rig(fake.Behavior(faults=fault))
    await rig.start()
    await rig.take(1, 60.0)
    assert [sync.failure.partition(":")[0] for sync in rig.receiver.syncs] == [reason, ""]


@pytest.mark.covers("weights W-15")
async def test_the_watchdog_bites_at_the_deadline_and_not_before() -> None:
    rig = Rig(fake.Behavior(faults={"load": ["hang"]}))
    await rig.start()
    await rig.take(1, 9.9)
    before = rig.receiver.state
    await rig.clock.advance(0.2)
    assert (before, rig.receiver.state) == (ReceiverState.APPLYING, ReceiverState.SERVING)


@pytest.mark.covers("workflows 1.2")
async def test_requests_that_a_broken_load_gave_up_go_on_from_their_tokens_on_the_whole_version() -> None:
    rig = Rig(fake.Behavior(token_s=1.0, faults={"load": ["shape", None, "shape"]}))
    await rig.start()
    held = asyncio.ensure_future(rig.gate.generate(fakes.make_request(max_tokens=4)))
    await rig.clock.advance(1.5)
    await rig.take(1, 1.0)
    await rig.take(2, 5.0)
    result = await held
    assert (len(result.output_ids), result.stop_reason) == (4, "length")
    assert list(result.versions) == sorted(result.versions)
    assert (result.versions[0], result.versions[-1]) == (0, 2)
    assert rig.events.count("abort_all") == 2


async def test_requests_inside_an_engine_process_that_died_fail() -> None:
    rig = Rig(fake.Behavior(token_s=1.0))
    await rig.start()
    held = asyncio.ensure_future(rig.gate.generate(fakes.make_request(max_tokens=4)))
    await rig.clock.advance(1.5)
    rig.engine.die()
    await rig.clock.advance(1.0)
    with pytest.raises(errors.EngineError, match="aborted"):
        await held


async def test_an_engine_that_cannot_be_restarted_ends_the_receiver_with_the_gate_closed() -> None:
    rig = Rig(fake.Behavior(faults={"verify": ["a", "b"], "restart": ["no memory"]}))
    await rig.start()
    await rig.take(1, 60.0)
    assert rig.task is not None
    with pytest.raises(errors.EngineError, match="no memory"):
        rig.task.result()
    assert (rig.receiver.state, rig.gate.is_open) == (ReceiverState.REFUSING, False)


@pytest.mark.covers("weights 8-10")
async def test_a_dead_engine_process_is_replaced_and_comes_back_on_the_served_version() -> None:
    rig = Rig()
    await rig.start()
    await rig.take(1)
    rig.events.clear()
    rig.engine.die()
    await rig.take(1, 1.0)
    assert rig.events == ["died", "generation stops", "stage 1", *RESTARTED, "generation goes on"]
    assert rig.receiver.served.version == 1
    assert rig.gate.is_open


async def test_waiters_for_a_step_or_a_pinned_version_wake_when_it_is_served() -> None:
    rig = Rig()
    await rig.start()
    floor = asyncio.ensure_future(rig.receiver.serves(fakes.make_lease(version_floor_step=2)))
    pinned = asyncio.ensure_future(rig.receiver.serves(fakes.make_lease(pinned_version=types.VersionId(1))))
    await rig.take(1)
    assert (floor.done(), pinned.done()) == (False, True)
    await rig.take(2)
    assert floor.done()


async def test_a_group_of_an_evaluation_is_given_up_once_a_later_version_is_served() -> None:
    rig = Rig()
    await rig.start()
    pinned = asyncio.ensure_future(rig.receiver.serves(fakes.make_lease(pinned_version=types.VersionId(1))))
    await rig.take(2)
    with pytest.raises(errors.WeightsError, match="version 2 is served, not 1"):
        await pinned


async def test_a_group_that_was_leased_ahead_waits_past_a_version_of_a_step_that_the_trainer_went_back_to() -> None:
    """Leased for version 1 of step 2; the trainer comes back and publishes versions 2 and 3 of steps 1 and 2."""
    rig = Rig()
    await rig.start()
    lease = fakes.make_lease(from_version=types.VersionId(1), version_floor_step=2)
    ahead = asyncio.ensure_future(rig.receiver.serves(lease))
    rig.stager.steps = {2: 1, 3: 2}
    await rig.take(2)
    assert not ahead.done()
    await rig.take(3)
    assert ahead.done()
    await ahead


async def test_a_version_is_not_taken_where_an_older_one_was_asked_for_while_it_was_fetched() -> None:
    rig = Rig()
    await rig.start()
    await rig.take(1)
    stage = rig.stager.stage

    def meanwhile(version: types.VersionId) -> staging.Staged:
        rig.receiver.want(types.VersionId(1))
        return stage(version)

    rig.stager.stage = meanwhile  # type: ignore[method-assign]  # an order comes during the fetch
    await rig.take(2, 5.0)
    assert rig.events[-1] == "stage 2"
    assert (rig.receiver.state, rig.receiver.served.version) == (ReceiverState.SERVING, 1)
    assert rig.gate.is_open


async def test_delivered_reports_are_forgotten_and_later_ones_kept() -> None:
    rig = Rig()
    await rig.start()
    await rig.take(1)
    await rig.take(2)
    rig.receiver.delivered(1)
    assert [sync.version for sync in rig.receiver.syncs] == [2]


async def test_a_load_that_takes_long_but_goes_on_is_no_dead_engine() -> None:
    """An image 50 times as large as the deadline was made for: ten parts of 9 s each under a deadline of 10 s."""
    rig = Rig(fake.Behavior(load_parts=10, load_part_s=9.0))
    await rig.start()
    await rig.take(1, 200.0)
    (sync,) = rig.receiver.syncs
    assert (sync.version, sync.failure) == (1, "")
    assert sync.apply_s == pytest.approx(90.0)
    assert not {"repair", "restart"} & set(rig.events)


async def test_a_load_that_stops_going_on_is_a_dead_engine_however_far_it_came() -> None:
    rig = Rig(fake.Behavior(load_parts=3, load_part_s=9.0, faults={"verify": ["hang"]}))
    await rig.start()
    await rig.take(1, 45.0)
    failed = [sync.failure for sync in rig.receiver.syncs if sync.failure]
    assert len(failed) == 1
    assert "loaded nothing for 10 s" in failed[0]
    assert "repair" in rig.events
