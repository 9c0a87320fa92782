"""The worker's story with FakeEngine, fake transport and FakeClock: the assertions are lists of events, in order."""

import asyncio
import pathlib
import re
from collections.abc import Sequence

import pytest

from rljob_api import enums, errors, process_config, types
from rljob_testing import makers
from rljob_testing import rollout as fakes
from rljob_testing.clock import FakeClock
from rljob_workers.rollout import dumps, group, reporting, request_gate, wait_accounting, worker
from rljob_workers.rollout.engines import fake
from rljob_workers.rollout.episodes import rlvr
from rljob_workers.rollout.sync import receiver
from rljob_workers.runtime import metrics as metrics_module
from rljob_workers.weights import transfers

JOB = process_config.JobIdentity(name="job", namespace="default", uid="u")


class Rig:
    """A whole worker, everything outside it faked, one list of events."""

    def __init__(self, *, token_s: float = 0.0, drain_s: float = 30.0, max_groups: int = 2, dump_dir: str = "") -> None:
        self.clock = FakeClock()
        self.events: list[str] = []
        behavior = fake.Behavior(token_s=token_s)
        self.engine = fake.FakeEngine(clock=self.clock, behavior=behavior, events=self.events)
        self.work = fakes.FakeWork(self.events, self.clock.sleep)
        self.grading = fakes.FakeGrading(self.events)
        self.stager = fakes.FakeStager(self.events)
        self.slots = wait_accounting.SlotWaits(num_slots=max_groups, clock=self.clock)
        self.metrics = metrics_module.Metrics(role=enums.Role.ROLLOUT, job=JOB)
        self.transfers, self.offer = transfers.Transfers(), types.NO_OFFER
        self.probes = reporting.Readiness(max_lag_steps=1)
        self.sessions: list[str] = []
        self.options = worker.WorkerOptions(
            pod="pod", boot_id="boot", initial_state_hash="hash", max_groups=max_groups, drain_s=drain_s
        )
        self.dumper = dumps.Dumper(dumps.Options(folder=dump_dir), fakes.FakeTokens())
        self.worker = worker.RolloutWorker(self.options, self._parts())
        self.running: asyncio.Future[None] | None = None

    def _parts(self) -> worker.WorkerParts:
        gate, tokens = request_gate.RequestGate(self.engine), fakes.FakeTokens()
        self.receiver = receiver.WeightReceiver(
            engine=self.engine,
            gate=gate,
            stager=self.stager,
            options=receiver.UpdateOptions(
                in_flight=True, recompute=False, pause_deadline_s=10.0, restart_deadline_s=600.0
            ),
            clock=self.clock,
            on_pause=self.slots.paused,
            to_thread=fakes.at_once,
        )
        runner = group.GroupRunner(
            generator=gate,
            flow=group.Flow(
                tokens=tokens, collector=rlvr.RlvrCollector(tokens=tokens, template="raw", max_model_len=64)
            ),
            flow_by_suite={},
            verifiers=self.grading,
            receiver=self.receiver,
            max_attempts=2,
            clock=self.clock,
            metrics=self.metrics,
        )
        report = reporting.Reporting(
            engine=self.engine,
            receiver=self.receiver,
            slots=self.slots,
            probes=self.probes,
            metrics=self.metrics,
            transfers=self.transfers,
            clock=self.clock,
        )
        return worker.WorkerParts(
            transport=self.work,
            runner=runner,
            receiver=self.receiver,
            waits=self.slots,
            report=report,
            dumper=self.dumper,
            clock=self.clock,
            on_session=self.sessions.append,
            offer=lambda: self.offer,
        )

    async def go(self, seconds: float) -> None:
        if self.running is None:
            self.running = asyncio.ensure_future(self.worker.run())
        await self.clock.advance(seconds)

    async def end(self) -> None:
        self.worker.drain()
        await self.go(self.options.drain_s + 10.0)
        assert self.running is not None
        await self.running

    def order(self, *, load: int = 0, cancel: Sequence[str] = (), drain: bool = False, finished: bool = False) -> None:
        self.work.orders.append(
            types.HeartbeatReply(
                drain=drain,
                cancel=[types.LeaseId(lease_id) for lease_id in cancel],
                load_version=types.VersionId(load),
                finished=finished,
            )
        )


async def test_the_story_of_one_group_from_register_to_submit() -> None:
    rig = Rig()
    rig.work.queue = [fakes.make_lease("a")]
    await rig.go(1.0)
    assert rig.events == [
        "register pod boot hash",
        "commit 0",
        "leased a",
        "generate salt 0",
        "generate salt 0",
        "verify 2",
        "submit group-a",
    ]
    assert rig.sessions == ["session-1"]
    await rig.end()


async def test_the_story_of_one_weight_version() -> None:
    rig = Rig(token_s=0.75)
    rig.work.queue = [fakes.make_lease("a")]
    await rig.go(0.5)
    rig.events.clear()
    rig.order(load=1)
    await rig.go(5.0)
    assert rig.events == [
        "stage 1",
        "pause",
        "load 1 tensors",
        "verify",
        "commit 1",
        "resume",
        "verify 2",
        "submit group-a",
    ]
    row = rig.work.submitted[0].trajectories[0]
    assert list(row.versions)[3:] == [0, 1, 1, 1]
    (delivered,) = [sync for beat in rig.work.beats for sync in beat["syncs"]]  # type: ignore[attr-defined]
    assert (delivered.version, delivered.failure) == (1, "")
    assert rig.work.beats[-1]["version"] == 1
    await rig.end()


@pytest.mark.parametrize("told_by", ["heartbeat", "announcement"])
async def test_hopeless_groups_are_cancelled_before_the_new_version_is_taken(told_by: str) -> None:
    rig = Rig(token_s=1.0)
    rig.work.queue = [fakes.make_lease("a"), fakes.make_lease("b")]
    await rig.go(0.5)
    running_when_paused: list[int] = []
    original = rig.engine.pause

    async def pause(*, clear_cache: bool) -> None:
        running_when_paused.append(rig.engine.num_running())
        await original(clear_cache=clear_cache)

    rig.engine.pause = pause  # type: ignore[method-assign]  # the fake is observed, nothing of ours is patched
    if told_by == "heartbeat":
        rig.order(load=1, cancel=["a"])
    else:
        rig.work.announce(1, cancel=["a"])
    await rig.go(6.0)
    assert running_when_paused == [2]
    assert [group.group_id for group in rig.work.submitted] == ["group-b"]
    await rig.end()


async def test_the_head_is_loaded_before_the_first_lease_and_before_ready() -> None:
    rig = Rig()
    rig.work.head, rig.work.head_step = types.VersionId(3), 3
    rig.stager.faults = [errors.UnavailableError("store is down")]
    rig.work.queue = [fakes.make_lease("a")]
    await rig.go(0.1)
    assert rig.probes.ready == (False, "loading the newest version")
    assert "leased a" not in rig.events
    await rig.go(3.0)
    assert rig.events.index("commit 3") < rig.events.index("leased a")
    assert rig.probes.ready[0]
    await rig.end()


async def test_no_more_groups_are_leased_than_there_are_slots() -> None:
    rig = Rig(token_s=1.0, max_groups=2)
    rig.work.queue = [fakes.make_lease(name) for name in "abc"]
    await rig.go(3.0)
    assert [event for event in rig.events if event.startswith("leased")] == ["leased a", "leased b"]
    await rig.go(3.0)
    assert "leased c" in rig.events
    assert max(rig.work.capacities) == 2
    await rig.end()


async def test_heartbeats_renew_all_held_leases_every_second() -> None:
    rig = Rig(token_s=1.0)
    rig.work.queue = [fakes.make_lease("a"), fakes.make_lease("b")]
    await rig.go(3.5)
    assert [beat["leases"] for beat in rig.work.beats] == [(), ("a", "b"), ("a", "b"), ("a", "b")]
    await rig.end()


async def test_a_version_that_is_served_is_reported_at_once() -> None:
    rig = Rig()
    await rig.go(1.5)
    beats = len(rig.work.beats)
    rig.order(load=1)
    # The heartbeat of second 2 says what to load; the one that reports it does not wait for second 3.
    await rig.go(1.0)
    assert [beat["version"] for beat in rig.work.beats[beats:]] == [0, 1]
    syncs = rig.work.beats[-1]["syncs"]
    assert isinstance(syncs, tuple)
    assert len(syncs) == 1
    await rig.end()


async def test_what_is_announced_is_loaded_without_a_heartbeat() -> None:
    rig = Rig()
    await rig.go(1.5)
    beats = len(rig.work.beats)
    rig.work.announce(1)
    await rig.go(0.0)
    # The heartbeat reports what is served; the next by the clock is due at second 2.
    assert [beat["version"] for beat in rig.work.beats[beats:]] == [1]
    await rig.end()


async def test_an_announcement_of_an_older_version_sends_no_one_back() -> None:
    rig = Rig()
    await rig.go(0.5)
    rig.work.announce(2)
    await rig.go(0.1)
    rig.work.announce(1)
    rig.work.head = types.VersionId(2)
    await rig.go(2.0)
    assert [event for event in rig.events if event.startswith("stage")] == ["stage 2"]
    await rig.end()


async def test_a_group_that_is_leased_ahead_begins_with_its_version() -> None:
    rig = Rig()
    rig.work.faults["heartbeat"] = [errors.UnavailableError("down")] * 100
    rig.work.queue = [fakes.make_lease("a", from_version=types.VersionId(1))]
    await rig.go(1.5)
    assert rig.events[-1] == "leased a"
    rig.work.announce(1)
    await rig.go(0.0)
    assert rig.events[-10:] == [
        "stage 1", "pause", "load 1 tensors", "verify", "commit 1", "resume",
        "generate salt 1", "generate salt 1", "verify 2", "submit group-a",
    ]  # fmt: skip
    assert rig.work.released == []
    await rig.end()


async def test_a_version_that_a_lease_is_the_first_to_name_is_asked_for_at_once() -> None:
    rig = Rig()
    await rig.go(1.5)
    beats = len(rig.work.beats)
    rig.work.queue = [fakes.make_lease("a", from_version=types.VersionId(1))]
    rig.work.head = types.VersionId(1)
    await rig.go(1.0)
    # The poll of second 0 ends at second 2; the heartbeat by the clock is due then, too.
    assert [beat["version"] for beat in rig.work.beats[beats:]] in ([0, 1], [0, 0, 1])
    assert [group.group_id for group in rig.work.submitted] == ["group-a"]
    await rig.end()


async def test_an_answer_from_before_an_announcement_does_not_undo_it_and_is_asked_for_again() -> None:
    rig = Rig()
    rig.work.faults["heartbeat"] = []
    await rig.go(0.5)
    answer = rig.work.heartbeat

    async def late(**call: object) -> types.HeartbeatReply:
        reply = await answer(**call)  # type: ignore[arg-type]  # passed on
        await rig.clock.sleep(0.5)
        return reply

    rig.work.heartbeat = late  # type: ignore[method-assign,assignment]  # the fake answers late
    await rig.go(0.75)
    rig.work.announce(1)
    await rig.go(0.1)
    assert rig.receiver.served.version == 1
    beats = len(rig.work.beats)
    await rig.go(0.2)
    # The answer came and said version 0; the one that asks again did not wait for the next second.
    assert len(rig.work.beats) == beats + 1
    await rig.go(3.0)
    assert [event for event in rig.events if event.startswith("stage")] == ["stage 1"]
    await rig.end()


async def test_a_group_whose_version_was_not_taken_is_handed_back_and_none_is_leased_ahead_until_one_is() -> None:
    rig = Rig()
    await rig.go(0.5)
    rig.work.queue = [fakes.make_lease("a", from_version=types.VersionId(1))]
    rig.stager.faults = [errors.UnavailableError("store is down")] * 5
    rig.work.announce(1)
    # The poll that began before it was announced ends at second 2.
    await rig.go(60.0)
    assert "release a: weights: version 1 is not to be had for now: an update failed" in rig.events
    assert rig.work.submitted == []
    assert rig.receiver.served.version == 1
    assert rig.work.aheads[:2] == [True, False]
    assert rig.work.aheads[-1] is True
    await rig.end()


async def test_a_group_is_handed_back_where_the_coordinator_wants_an_older_version_served() -> None:
    rig = Rig()
    await rig.go(1.5)
    rig.work.queue = [fakes.make_lease("a", from_version=types.VersionId(1))]
    await rig.go(2.0)
    assert "release a: weights: version 0 is to be served, not 1" in rig.events
    await rig.end()


async def test_a_stream_of_announcements_that_broke_is_opened_again() -> None:
    rig = Rig()
    rig.work.faults["watch"] = [errors.UnavailableError("the coordinator restarts")] * 3
    # Tried again after 0.2, 0.4 and 0.8 s.
    await rig.go(3.5)
    beats = len(rig.work.beats)
    rig.work.announce(1)
    await rig.go(0.0)
    assert rig.work.faults["watch"] == []
    assert [beat["version"] for beat in rig.work.beats[beats:]] == [1]
    await rig.end()


async def test_without_news_of_heads_the_heartbeat_brings_them() -> None:
    rig = Rig()
    rig.work.faults["watch"] = [errors.UnavailableError("down")] * 100
    await rig.go(1.5)
    rig.work.announce(1)
    await rig.go(0.0)
    assert rig.receiver.served.version == 0
    await rig.go(1.0)
    assert rig.receiver.served.version == 1
    await rig.end()


async def test_a_report_that_found_no_answer_is_repeated_at_the_usual_pace() -> None:
    rig = Rig()
    await rig.go(1.5)
    rig.order(load=1)
    rig.work.faults["heartbeat"] = [None, *[errors.UnavailableError("down")] * 3]
    await rig.go(3.0)
    # Second 2 brings the order, its news fails at once, then at seconds 3 and 4.
    assert rig.work.faults["heartbeat"] == []
    assert [beat["version"] for beat in rig.work.beats][-2:] == [0, 0]
    await rig.go(1.0)
    assert rig.work.beats[-1]["version"] == 1
    await rig.end()


async def test_load_reports_tokens_groups_and_waits() -> None:
    rig = Rig(token_s=1.0)
    rig.work.queue = [fakes.make_lease("a")]
    await rig.go(2.5)
    load = rig.work.beats[-1]["load"]
    assert isinstance(load, types.RolloutLoad)
    assert (load.running_sequences, load.groups_in_flight, load.generated_tokens) == (2, 1, 2)
    assert load.wait_s["no_prompts"] == 1.0
    assert load.waiting_for == ""
    await rig.end()


async def test_a_submit_without_an_answer_is_repeated_until_it_comes() -> None:
    rig = Rig()
    rig.work.faults["submit"] = [errors.UnavailableError("down")] * 3
    rig.work.queue = [fakes.make_lease("a")]
    await rig.go(20.0)
    assert rig.events.count("submit group-a") == 4
    assert len(rig.work.submitted) == 1
    await rig.end()


async def test_generation_goes_on_while_the_coordinator_cannot_be_reached() -> None:
    rig = Rig(token_s=1.0)
    rig.work.queue = [fakes.make_lease("a")]
    await rig.go(0.5)
    rig.work.faults = {name: [errors.UnavailableError("down")] * 6 for name in ("heartbeat", "lease")}
    await rig.go(10.0)
    assert len(rig.work.submitted) == 1
    assert rig.slots.totals()[enums.WaitReason.COORDINATOR] > 0.0
    await rig.end()


@pytest.mark.parametrize("call", ["heartbeat", "lease", "submit", "watch"])
async def test_a_fenced_call_registers_again_once_and_keeps_the_work(call: str) -> None:
    rig = Rig(token_s=0.1)
    rig.work.faults[call] = [errors.FencedError("session was replaced")]
    rig.work.queue = [fakes.make_lease("a")]
    await rig.go(10.0)
    assert rig.events.count("register pod boot hash") == 2
    assert rig.sessions == ["session-1", "session-2"]
    assert len(rig.work.submitted) == 1
    await rig.end()


async def test_a_process_whose_place_was_taken_for_good_ends() -> None:
    rig = Rig()
    rig.work.faults = {
        "heartbeat": [None, errors.FencedError("replaced")],
        "register": [None, errors.FencedError("a newer process runs here")],
    }
    await rig.go(3.0)
    assert rig.running is not None
    with pytest.raises(ExceptionGroup) as ended:
        await rig.running
    assert ended.group_contains(errors.FencedError)


async def test_a_group_that_the_coordinator_refuses_is_handed_back() -> None:
    rig = Rig()
    rig.work.faults["submit"] = [errors.WireError("malformed")]
    rig.work.queue = [fakes.make_lease("a")]
    await rig.go(1.0)
    assert rig.events[-2:] == ["submit group-a", "release a: refused: WireError"]
    await rig.end()


async def test_a_group_that_is_too_large_to_send_fails_once_with_the_reason_and_is_not_sent_again() -> None:
    rig = Rig()
    rig.work.faults["submit"] = [errors.TooLargeError("group-a has 70 MiB, a message at most 64 MiB")]
    rig.work.queue = [fakes.make_lease("a")]
    await rig.go(1.0)
    (group,) = rig.work.submitted
    assert [event for event in rig.events if "submit" in event or "release" in event] == ["submit group-a"] * 2
    assert list(group.trajectories) == []
    assert [(failure.sample_index, failure.reason, failure.infra) for failure in group.failures] == [
        (0, "TooLargeError", False),
        (1, "TooLargeError", False),
    ]
    assert "70 MiB" in group.failures[0].detail
    await rig.end()


async def test_an_infra_verdict_is_submitted_as_a_member_failure() -> None:
    rig = Rig()
    rig.grading.answer = lambda item: makers.make_verdict(None)
    rig.work.queue = [fakes.make_lease("a")]
    await rig.go(1.0)
    (group,) = rig.work.submitted
    assert (list(group.trajectories), [failure.infra for failure in group.failures]) == ([], [True, True])
    await rig.end()


def drains(rig: Rig) -> dict[str, int]:
    """Return how many drains ended in each way, as a page shows it."""
    text = rig.metrics.exposition().decode()
    shown = re.findall(r'rljob_drain_seconds_count\{result="(\w+)",[^}]*\} (\S+)', text)
    return {result: int(float(count)) for result, count in shown}


async def test_drain_finishes_what_is_held_and_leases_nothing_more() -> None:
    rig = Rig(token_s=1.0, max_groups=1)
    rig.work.queue = [fakes.make_lease("a"), fakes.make_lease("b")]
    await rig.go(1.5)
    rig.worker.drain()
    await rig.go(10.0)
    assert rig.running is not None
    await rig.running
    assert [group.group_id for group in rig.work.submitted] == ["group-a"]
    assert "leased b" not in rig.events
    assert rig.work.released == []
    assert rig.work.beats[-1]["draining"] is True
    assert drains(rig) == {"finished": 1, "handed_back": 0, "killed": 0}


async def test_drain_hands_back_what_does_not_finish_in_time() -> None:
    rig = Rig(token_s=100.0, drain_s=5.0)
    rig.work.queue = [fakes.make_lease("a"), fakes.make_lease("b")]
    await rig.go(1.0)
    rig.worker.drain()
    await rig.go(4.0)
    assert rig.running is not None
    assert not rig.running.done()
    await rig.go(2.0)
    await rig.running
    assert sorted(rig.work.released) == ["a", "b"]
    assert rig.engine.num_running() == 0
    assert rig.work.submitted == []
    assert drains(rig) == {"finished": 0, "handed_back": 1, "killed": 0}


async def test_a_worker_whose_time_is_up_hands_back_at_once_what_is_not_finished_and_keeps_what_is_handed_in() -> None:
    rig = Rig(token_s=10.0, drain_s=600.0)
    rig.work.queue = [fakes.make_lease("a")]
    await rig.go(200.0)
    assert [group.group_id for group in rig.work.submitted] == ["group-a"]
    rig.work.queue = [fakes.make_lease("b"), fakes.make_lease("c")]
    await rig.go(5.0)
    rig.worker.drain()
    await rig.go(1.0)
    assert rig.running is not None
    assert not rig.running.done(), "it drains"
    rig.worker.hand_back()
    await rig.go(0.0)
    await rig.running
    assert sorted(rig.work.released) == ["b", "c"]
    assert [group.group_id for group in rig.work.submitted] == ["group-a"]
    assert drains(rig) == {"finished": 0, "handed_back": 1, "killed": 0}


async def test_a_drain_that_nobody_takes_groups_back_from_kills_them() -> None:
    rig = Rig(token_s=100.0, drain_s=5.0)
    rig.work.queue = [fakes.make_lease("a")]

    async def refuse(lease_id: types.LeaseId, reason: str) -> bool:
        raise errors.UnavailableError("the coordinator is gone")

    rig.work.release = refuse  # type: ignore[method-assign]  # the fake always answers
    await rig.go(1.0)
    rig.worker.drain()
    await rig.go(6.0)
    assert rig.running is not None
    await rig.running
    assert drains(rig) == {"finished": 0, "handed_back": 0, "killed": 1}


async def test_a_lease_that_comes_during_the_drain_is_handed_back() -> None:
    rig = Rig(token_s=1.0)

    async def slow_poll(
        *, capacity: int, serving_version: types.VersionId, wait_s: float, ahead: bool
    ) -> types.LeaseGrant:
        await rig.clock.sleep(wait_s)
        return types.LeaseGrant(leases=[fakes.make_lease("late")])

    rig.work.lease = slow_poll  # type: ignore[method-assign]  # the fake answers late
    await rig.go(0.5)
    rig.worker.drain()
    await rig.go(5.0)
    assert rig.running is not None
    await rig.running
    assert rig.work.released == ["late"]
    assert "generate salt 0" not in rig.events


@pytest.mark.parametrize("what", ["drain", "finished"])
async def test_the_coordinators_word_ends_the_worker(what: str) -> None:
    rig = Rig()
    rig.order(load=0, drain=what == "drain", finished=what == "finished")
    await rig.go(5.0)
    assert rig.running is not None
    assert rig.running.done()
    await rig.running


async def test_an_engine_that_is_lost_for_good_ends_the_process() -> None:
    rig = Rig()
    await rig.go(0.5)

    async def restart() -> None:
        raise errors.EngineError("no memory")

    rig.engine.restart = restart  # type: ignore[method-assign]  # the fake misbehaves
    rig.engine.die()
    await rig.go(5.0)
    assert rig.running is not None
    with pytest.raises(ExceptionGroup) as ended:
        await rig.running
    assert ended.group_contains(errors.EngineError, match="no memory")


async def test_metrics_tell_tokens_waits_versions_and_syncs() -> None:
    rig = Rig()
    rig.work.queue = [fakes.make_lease("a")]
    rig.order(load=0)
    rig.order(load=2)
    await rig.go(3.5)
    text = rig.metrics.exposition().decode()
    labels = 'rljob="job",rljob_namespace="default"'
    assert f'rljob_tokens_total{{kind="generated",{labels}}} 8.0' in text
    assert f'rljob_tokens_total{{kind="prompt",{labels}}} 6.0' in text
    assert f"rljob_rollout_serving_version{{{labels}}} 2.0" in text
    assert f"rljob_weight_changed_ratio{{{labels}}} 0.25" in text
    assert f'rljob_weight_sync_bytes_total{{kind="full",{labels}}} 64.0' in text
    assert f'rljob_weight_sync_seconds_count{{phase="pause",{labels}}} 1.0' in text
    await rig.end()


async def test_metrics_tell_where_weights_came_from_what_was_served_and_who_failed() -> None:
    rig = Rig()
    await rig.go(0.5)
    rig.transfers.fetched(enums.SourceKind.STORE, 100)
    rig.transfers.fetched(enums.SourceKind.PEER, 700)
    rig.transfers.served(300)
    rig.transfers.failed(errors.DigestError("piece 3 from 10.0.0.1:50054"))
    rig.transfers.failed(errors.BusyError("all 4 streams are in use"))
    # Twice: totals are not added up.
    await rig.go(3.0)
    text = rig.metrics.exposition().decode()
    labels = 'rljob="job",rljob_namespace="default"'
    counted = {
        f'rljob_weight_source_bytes_total{{{labels},source="store"}} 100.0',
        f'rljob_weight_source_bytes_total{{{labels},source="peer"}} 700.0',
        f'rljob_weight_source_bytes_total{{{labels},source="file"}} 0.0',
        f"rljob_weight_served_bytes_total{{{labels}}} 300.0",
        f'rljob_weight_source_failures_total{{reason="digest",{labels}}} 1.0',
        f'rljob_weight_source_failures_total{{reason="busy",{labels}}} 1.0',
        f'rljob_weight_source_failures_total{{reason="unavailable",{labels}}} 0.0',
    }
    assert counted <= set(text.splitlines())
    await rig.end()


async def test_heartbeats_tell_what_is_served_to_other_rollouts() -> None:
    rig = Rig()
    rig.offer = types.WeightOffer(address="10.0.0.1:50054", artifact_ids=("a", "b"))
    await rig.go(1.5)
    assert rig.work.beats[-1]["offer"] == rig.offer
    await rig.end()


async def test_before_the_first_published_version_nothing_is_said_of_changed_weights() -> None:
    rig = Rig()
    await rig.go(3.5)
    text = rig.metrics.exposition().decode()
    assert 'rljob_rollout_serving_version{rljob="job",rljob_namespace="default"} 0.0' in text
    assert "rljob_weight_changed_ratio{" not in text
    await rig.end()


@pytest.mark.covers("workflows 10")
async def test_heartbeats_tell_how_many_dumps_failed(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    rig = Rig(dump_dir=str(tmp_path / "file" / "dumps"))
    rig.work.queue = [fakes.make_lease("a")]
    await rig.go(10.0)
    load = rig.work.beats[-1]["load"]
    assert isinstance(load, types.RolloutLoad)
    # Two members, a row each.
    assert (load.dump_failures, len(rig.work.submitted)) == (2, 1)
    await rig.end()
