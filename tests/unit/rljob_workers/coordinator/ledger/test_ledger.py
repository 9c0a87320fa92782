"""The transitions one by one. Random orders of them: test_ledger_properties.py."""

import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from rljob_api import enums, errors, types
from rljob_api.manifest.data import FilterGroupsSpec
from rljob_testing.sections import section
from rljob_workers.coordinator.ledger import (
    audit,
    checkpoints,
    database,
    evaluations,
    groups,
    leases,
    queries,
    sessions,
    steps,
    versions,
)

# A maker of the bench that conftest.py describes.
Make = Callable[..., Any]
WAIT = enums.WaitReason


def state_of(bench: Any, group_id: str) -> tuple[str, str | None, int]:
    row = bench.ledger.require(
        "SELECT state, drop_reason, attempt FROM groups WHERE group_id = ?", group_id, problem="no group"
    )
    return row["state"], row["drop_reason"], row["attempt"]


def test_a_leased_group_is_submitted_packed_and_trained(make_bench: Make) -> None:
    bench = make_bench()
    rollout, trainer = bench.rollout(), bench.trainer()
    states = []
    leases = bench.lease(rollout, 2)
    states.append(state_of(bench, leases[0].group_id)[0])
    for lease in leases:
        assert bench.submit(rollout, lease).outcome == "accepted"
    states.append(state_of(bench, leases[0].group_id)[0])
    assert bench.pack() == 1
    states.append(state_of(bench, leases[0].group_id)[0])
    assert bench.commit(trainer, 1) is False
    states.append(state_of(bench, leases[0].group_id)[0])
    assert states == ["leased", "submitted", "packed", "trained"]


def test_a_repeated_submission_gets_the_recorded_answer(make_bench: Make) -> None:
    bench = make_bench()
    rollout = bench.rollout()
    (lease,) = bench.lease(rollout)
    first, again = bench.submit(rollout, lease), bench.submit(rollout, lease, rewards=(0.0, 0.0))
    assert (first.outcome, first.duplicate) == ("accepted", False)
    assert (again.outcome, again.duplicate) == ("accepted", True)
    assert "trajectories:duplicate" not in bench.ledger.counters(), (
        "the same call, asked again, is no second trajectory"
    )
    assert groups.counts(bench.ledger).submitted == 1


def test_who_holds_the_lease_is_not_answered_with_what_another_was_told(make_bench: Make) -> None:
    bench = make_bench()
    holder, other = bench.rollout("rollout-0"), bench.rollout("rollout-1")
    (lease,) = bench.lease(holder)
    assert bench.submit(other, lease).outcome == "duplicate"
    assert bench.submit(holder, lease).outcome == "accepted"
    assert bench.submit(other, lease).outcome == "accepted", "the answer of the group, from now on"
    assert audit.audit(bench.ledger.db, max_off_policy_steps=1) == []


def test_an_acknowledged_submission_survives_a_restart(make_bench: Make) -> None:
    bench = make_bench()
    rollout = bench.rollout()
    (lease,) = bench.lease(rollout)
    bench.submit(rollout, lease)
    bench.reopen()
    assert groups.counts(bench.ledger).submitted == 1
    assert bench.submit(rollout, lease).duplicate


def test_an_expired_lease_is_offered_again_as_the_next_attempt_and_the_late_answer_does_not_count(
    make_bench: Make,
) -> None:
    bench = make_bench(lease_s=60)
    rollout = bench.rollout()
    (lease,) = bench.lease(rollout)
    bench.now += 61
    assert leases.expire(bench.ledger, now=bench.now) == 1
    assert state_of(bench, lease.group_id) == ("queued", None, 1)
    late = bench.submit(rollout, lease)
    assert late.outcome is enums.TrajectoryOutcome.DUPLICATE
    (again,) = bench.lease(rollout)
    assert (again.group_id, again.attempt) == (lease.group_id, 1)
    assert bench.submit(rollout, again).outcome == "accepted"


def test_a_heartbeat_renews_and_names_the_leases_to_cancel(make_bench: Make) -> None:
    bench = make_bench(lease_s=60)
    rollout = bench.rollout()
    (lease,) = bench.lease(rollout)
    bench.now += 50
    assert leases.renew(bench.ledger, token=rollout, lease_ids=[lease.lease_id], now=bench.now) == []
    bench.now += 50
    assert leases.expire(bench.ledger, now=bench.now) == 0
    assert leases.renew(bench.ledger, token=rollout, lease_ids=["unheard of"], now=bench.now) == ["unheard of"]


def test_a_lease_whose_grant_never_reached_its_rollout_expires_although_the_rollout_lives(make_bench: Make) -> None:
    bench = make_bench(lease_s=60)
    rollout = bench.rollout()
    (lost,), (held,) = bench.lease(rollout), bench.lease(rollout)
    for _ in range(3):
        bench.now += 25
        assert leases.renew(bench.ledger, token=rollout, lease_ids=[held.lease_id], now=bench.now) == []
        leases.expire(bench.ledger, now=bench.now)
    assert state_of(bench, lost.group_id) == ("queued", None, 1)
    assert state_of(bench, held.group_id)[0] == "leased"


def test_a_restart_gives_open_leases_one_more_period(make_bench: Make) -> None:
    bench = make_bench(lease_s=60)
    bench.lease(bench.rollout())
    bench.now += 1000
    bench.reopen()
    assert leases.expire(bench.ledger, now=bench.now) == 0


def test_a_newer_process_of_a_pod_fences_the_older_and_its_leases_are_offered_at_once(make_bench: Make) -> None:
    bench = make_bench()
    old = bench.rollout("rollout-0")
    (lease,) = bench.lease(old)
    new = bench.rollout("rollout-0")
    with pytest.raises(errors.FencedError, match="replaced"):
        bench.submit(old, lease)
    (again,) = bench.lease(new)
    assert (again.group_id, again.attempt) == (lease.group_id, 1)


def test_a_replaced_process_cannot_register_again(make_bench: Make) -> None:
    bench = make_bench()
    bench.rollout("rollout-0", "first")
    bench.rollout("rollout-0", "second")
    with pytest.raises(errors.FencedError, match="newer one"):
        bench.rollout("rollout-0", "first")


def test_registering_twice_is_registering_once(make_bench: Make) -> None:
    bench = make_bench()
    token = bench.rollout("rollout-0", "first")
    (lease,) = bench.lease(token)
    assert bench.rollout("rollout-0", "first") == token
    assert bench.submit(token, lease).outcome == "accepted"


def test_sessions_survive_a_restart(make_bench: Make) -> None:
    bench = make_bench()
    token = bench.rollout()
    bench.reopen()
    assert len(bench.lease(token)) == 1


def test_a_lower_trainer_attempt_is_fenced(make_bench: Make) -> None:
    bench = make_bench()
    rollout, old = bench.rollout(), bench.trainer(attempt=1)
    bench.step(rollout, old)
    bench.trainer(attempt=2, resume_step=1)
    with pytest.raises(errors.FencedError):
        steps.decide(bench.ledger, token=old, step=2, rank=0, world_size=1, stop=False)
    with pytest.raises(errors.FencedError, match="attempt 1"):
        bench.trainer(attempt=1)


def test_no_lease_is_given_beyond_the_staleness_bound(make_bench: Make) -> None:
    bench = make_bench(prompts_per_step=2, max_off_policy_steps=1)
    rollout = bench.rollout()
    granted, reason = leases.lease(
        bench.ledger, token=rollout, capacity=99, serving_version=0, take=bench.order.take, now=bench.now
    )
    assert (len(granted), reason) == (4, WAIT.STALENESS)


def test_a_worker_below_the_version_floor_gets_no_lease(make_bench: Make) -> None:
    bench = make_bench(prompts_per_step=2, max_off_policy_steps=0)
    rollout, trainer = bench.rollout(), bench.trainer()
    version = bench.step(rollout, trainer)
    granted, reason = leases.lease(
        bench.ledger, token=rollout, capacity=1, serving_version=0, take=bench.order.take, now=bench.now
    )
    assert (granted, reason) == ([], WAIT.WEIGHTS)
    assert len(bench.lease(rollout, serving=version)) == 1


def test_a_fork_gives_no_lease_to_a_worker_that_serves_the_model_files(make_bench: Make) -> None:
    bench = make_bench(resume_from={"job": "old"})
    rollout, trainer = bench.rollout(), bench.trainer()
    assert bench.lease(rollout, serving=0) == []
    assert bench.publish(trainer, 0) == 1
    assert bench.lease(rollout, serving=0) == []
    assert len(bench.lease(rollout, serving=1)) == 1


def test_the_last_steps_are_not_over_generated(make_bench: Make) -> None:
    bench = make_bench(prompts_per_step=2, max_off_policy_steps=3, max_steps=1)
    assert len(bench.lease(bench.rollout(), capacity=99)) == 2


@pytest.mark.covers("algorithms 2.4")
def test_a_batch_takes_the_oldest_groups_first_then_lease_order(make_bench: Make) -> None:
    bench = make_bench(prompts_per_step=2, max_off_policy_steps=1)
    rollout, trainer = bench.rollout(), bench.trainer()
    first, second, third, fourth = bench.lease(rollout, 4)
    for lease in (fourth, third):
        bench.submit(rollout, lease)
    assert bench.pack() == 1
    bench.commit(trainer, 1)
    one = bench.publish(trainer, 1)
    # Sampled on version 1 although leased first: it goes after those of version 0.
    (young,) = bench.lease(rollout, 1, serving=one)
    bench.submit(rollout, young, versions=one)
    bench.submit(rollout, first, versions=one)
    bench.submit(rollout, second)
    chosen = steps.choose(bench.ledger, more_prompts=True).candidates
    assert [candidate.group_id for candidate in chosen] == [second.group_id, first.group_id]


@pytest.mark.covers("algorithms 2.4")
def test_rows_are_ordered_by_lease_never_by_arrival(make_bench: Make) -> None:
    bench = make_bench(prompts_per_step=3)
    rollout = bench.rollout()
    leases = bench.lease(rollout, 3)
    for lease in reversed(leases):
        bench.submit(rollout, lease)
    chosen = steps.choose(bench.ledger, more_prompts=True).candidates
    assert [candidate.group_id for candidate in chosen] == [lease.group_id for lease in leases]


@pytest.mark.covers("algorithms 2.2")
def test_a_straggler_is_cancelled_as_soon_as_no_batch_can_take_it(make_bench: Make) -> None:
    bench = make_bench(prompts_per_step=1, max_off_policy_steps=1, on_stale="Drop")
    rollout, trainer = bench.rollout(), bench.trainer()
    straggler, other = bench.lease(rollout, 2)
    bench.submit(rollout, other)
    bench.pack()
    bench.commit(trainer, 1)
    one = bench.publish(trainer, 1)
    assert leases.renew(bench.ledger, token=rollout, lease_ids=[straggler.lease_id], now=bench.now) == []
    (third,) = bench.lease(rollout, 1, serving=one)
    bench.submit(rollout, third, versions=one)
    assert bench.pack() == 2  # the next batch has index 2; a token of step 0 would be of age 2
    assert state_of(bench, straggler.group_id)[:2] == ("dropped", "stale")
    assert leases.renew(bench.ledger, token=rollout, lease_ids=[straggler.lease_id], now=bench.now) == [
        straggler.lease_id
    ]


def test_what_a_cancelled_straggler_was_making_counts_as_stale_once_though_it_is_handed_in_late(
    make_bench: Make,
) -> None:
    bench = make_bench(prompts_per_step=1, max_off_policy_steps=1, on_stale="Drop")
    rollout, trainer = bench.rollout(), bench.trainer()
    straggler, other = bench.lease(rollout, 2)
    bench.submit(rollout, other)
    bench.pack()
    bench.commit(trainer, 1)
    one = bench.publish(trainer, 1)
    (third,) = bench.lease(rollout, 1, serving=one)
    bench.submit(rollout, third, versions=one)
    assert bench.ledger.counters().get("trajectories:stale", 0) == 0
    bench.pack()
    assert bench.submit(rollout, straggler).outcome == "duplicate"
    assert bench.ledger.counters()["trajectories:duplicate"] == 2
    assert bench.ledger.counters()["trajectories:stale"] == straggler.group_size


@pytest.mark.covers("algorithms 2.3")
def test_the_prompt_of_a_stale_group_returns_to_the_head_of_the_queue(make_bench: Make) -> None:
    bench = make_bench(prompts_per_step=1, max_off_policy_steps=1, on_stale="Drop")
    rollout, trainer = bench.rollout(), bench.trainer()
    straggler, other = bench.lease(rollout, 2)
    bench.submit(rollout, other)
    bench.pack()
    bench.commit(trainer, 1)
    one = bench.publish(trainer, 1)
    (third,) = bench.lease(rollout, 1, serving=one)
    bench.submit(rollout, third, versions=one)
    bench.pack()
    bench.commit(trainer, 2)
    two = bench.publish(trainer, 2)
    (again,) = bench.lease(rollout, 1, serving=two)
    assert (again.ref.prompt_id, again.ref.position) == (straggler.ref.prompt_id, straggler.ref.position)
    assert again.attempt == straggler.attempt + 1


def test_a_submission_that_no_batch_can_take_is_answered_stale(make_bench: Make) -> None:
    bench = make_bench(prompts_per_step=1, max_off_policy_steps=0, lease_s=1e9)
    rollout, trainer = bench.rollout(), bench.trainer()
    bench.step(rollout, trainer)
    (lease,) = bench.lease(rollout, 1, serving=1)
    # The engine asserts version 0 for its tokens, whatever the worker said that it serves.
    assert bench.submit(rollout, lease, versions=0).outcome is enums.TrajectoryOutcome.STALE


def test_an_infra_failure_is_retried_then_starts_afresh_behind_the_queue(make_bench: Make) -> None:
    bench = make_bench(max_infra_attempts_per_prompt=2, prompts_per_step=1, max_off_policy_steps=0)
    rollout = bench.rollout()
    failed = types.MemberFailure(sample_index=1, role="verifier", reason="timeout")
    (lease,) = bench.lease(rollout)
    assert bench.submit(rollout, lease, rewards=(1.0,), failures=[failed]).outcome == "infra_failure"
    (again,) = bench.lease(rollout)
    assert again.group_id == lease.group_id
    bench.submit(rollout, again, rewards=(1.0,), failures=[failed])
    assert state_of(bench, lease.group_id)[:2] == ("dropped", "infra_exhausted")
    (fresh,) = bench.lease(rollout)
    assert (fresh.ref.prompt_id, fresh.group_id != lease.group_id) == (lease.ref.prompt_id, True)


@pytest.mark.covers("algorithms 4", "workflows 6.2")
def test_a_filtered_group_frees_its_slot_for_another_prompt(make_bench: Make) -> None:
    zero_spread = section(FilterGroupsSpec, enabled=True, max_extra_groups=5)
    bench = make_bench(prompts_per_step=1, max_off_policy_steps=0, filter_groups=zero_spread)
    rollout = bench.rollout()
    (lease,) = bench.lease(rollout)
    assert bench.submit(rollout, lease, rewards=(1.0, 1.0)).outcome == "filtered"
    (other,) = bench.lease(rollout)
    assert other.ref.position == lease.ref.position + 1


def test_rewards_of_filtered_groups_are_kept_for_the_step_that_was_gathered(make_bench: Make) -> None:
    zero_spread = section(FilterGroupsSpec, enabled=True, max_extra_groups=5)
    bench = make_bench(prompts_per_step=1, max_off_policy_steps=0, filter_groups=zero_spread)
    rollout, trainer = bench.rollout(), bench.trainer()
    for reward in (1.0, 0.5):
        (lease,) = bench.lease(rollout)
        bench.submit(rollout, lease, rewards=(reward, reward))
    bench.step(rollout, trainer)
    # The step is trained; the one after it has left out nothing.
    (lease,) = bench.lease(rollout, serving=1)
    bench.submit(rollout, lease, versions=1)
    assert steps.choose(bench.ledger, more_prompts=True).left_out == steps.Rewards()
    earned = bench.ledger.db.one("SELECT step, num_rows, total, total_squares FROM left_out")
    assert tuple(earned) == (1, 4, 3.0, 2.5)


@pytest.mark.parametrize("reason", ["drained", "weights: version 3 is not to be had for now"])
def test_a_drain_or_a_version_that_is_not_to_be_had_costs_the_prompt_no_attempt(make_bench: Make, reason: str) -> None:
    bench = make_bench(max_infra_attempts_per_prompt=2)
    rollout = bench.rollout()
    (lease,) = bench.lease(rollout)
    for _ in range(3):
        assert leases.release(bench.ledger, token=rollout, lease_id=lease.lease_id, reason=reason, now=bench.now)
        (lease,) = bench.lease(rollout)
    assert lease.attempt == 3
    assert not leases.release(bench.ledger, token=rollout, lease_id="unheard of", reason=reason, now=bench.now)


def test_a_group_may_be_leased_for_the_version_that_its_rollout_loads(make_bench: Make) -> None:
    """eta 1, B 2: of the six groups that step 1 admits, four are of the steps that version 0 is young enough for."""
    bench = make_bench()
    rollout, trainer = bench.rollout(), bench.trainer()
    held = bench.lease(rollout, capacity=4)
    for lease in held[:2]:
        bench.submit(rollout, lease)
    bench.commit(trainer, bench.pack())
    version = bench.publish(trainer, 1)
    assert bench.lease(rollout, capacity=9) == []
    ahead = bench.lease(rollout, capacity=9, coming=version)
    assert [(lease.floor_step, lease.from_version) for lease in ahead] == [(1, version)] * 2
    assert [lease.lease_order for lease in (*held, *ahead)] == [1, 2, 3, 4, 5, 6]
    rows = bench.ledger.db.all("SELECT granted_step, granted_version FROM leases ORDER BY lease_id DESC LIMIT 2")
    assert [(row["granted_step"], row["granted_version"]) for row in rows] == [(1, version)] * 2


def test_groups_that_were_leased_ahead_are_withdrawn_when_their_step_is_undone_for_good(make_bench: Make) -> None:
    """The trainer comes back from before a checkpoint that let step 1 go: version 1 is no longer of any batch."""
    bench = make_bench()
    rollout, trainer = bench.rollout(), bench.trainer()
    for lease in bench.lease(rollout, capacity=2):
        bench.submit(rollout, lease)
    bench.commit(trainer, bench.pack())
    version = bench.publish(trainer, 1)
    held = bench.lease(rollout, capacity=9, coming=version)
    ahead = [lease.lease_id for lease in held if lease.from_version == version]
    checkpoints.commit_checkpoint(bench.ledger, token=trainer, step=1, uri="u", seconds=1.0, final=False, now=bench.now)
    again = bench.trainer(attempt=2, resume_step=0)
    names = [lease.lease_id for lease in held]
    assert len(ahead) == 2
    assert leases.withdrawn(bench.ledger, token=rollout, lease_ids=names) == ahead
    assert bench.lease(rollout, capacity=9, serving=version) == []
    # Its own first step supersedes it.
    for lease in bench.lease(rollout, capacity=9):
        bench.submit(rollout, lease)
    for lease in held[:2]:
        bench.submit(rollout, lease)
    bench.commit(again, bench.pack())
    version = bench.publish(again, 1, attempt=2)
    assert {lease.from_version for lease in bench.lease(rollout, capacity=9, coming=version)} == {version}


def test_the_same_bytes_are_served_until_a_checkpoint_covers_the_step(make_bench: Make) -> None:
    bench = make_bench()
    rollout, trainer = bench.rollout(), bench.trainer()
    for lease in bench.lease(rollout, 2):
        bench.submit(rollout, lease)
    bench.pack()
    header = steps.decide(bench.ledger, token=trainer, step=1, rank=0, world_size=1, stop=False)
    assert (header.kind, header.trainer_version, header.num_micro_batches) == (enums.BatchKind.BATCH, 0, 1)
    before = steps.parts(bench.ledger, step=1, rank=0)
    bench.commit(trainer, 1)
    bench.reopen()
    assert steps.decide(bench.ledger, token=trainer, step=1, rank=0, world_size=1, stop=False) == header
    assert steps.parts(bench.ledger, step=1, rank=0) == before
    checkpoint(bench, trainer, 1)
    with pytest.raises(errors.LedgerError, match="pruned"):
        steps.decide(bench.ledger, token=trainer, step=1, rank=0, world_size=1, stop=False)


def checkpoint(bench: Any, trainer: str, step: int, *, final: bool = False) -> bool:
    found = checkpoints.commit_checkpoint(
        bench.ledger, token=trainer, step=step, uri=f"c{step}", seconds=1.0, final=final, now=bench.now
    )
    assert isinstance(found, bool)
    return found


def test_one_step_is_packed_ahead_and_waits_for_the_commit_of_the_one_before(make_bench: Make) -> None:
    bench = make_bench(prompts_per_step=1, max_off_policy_steps=2)
    rollout, trainer = bench.rollout(), bench.trainer()
    for lease in bench.lease(rollout, 3):
        bench.submit(rollout, lease)
    assert [bench.pack() for _ in range(3)] == [1, 2, None]
    header = steps.decide(bench.ledger, token=trainer, step=2, rank=0, world_size=1, stop=False)
    assert (header.kind, header.wait_reason) == (enums.BatchKind.NOT_READY, "step 1 to be committed")
    bench.commit(trainer, 1)
    header = steps.decide(bench.ledger, token=trainer, step=2, rank=0, world_size=1, stop=False)
    assert (header.kind, header.trainer_version) == (enums.BatchKind.BATCH, 1)
    assert bench.pack() == 3


@pytest.mark.covers("algorithms 10")
def test_a_step_is_packed_ahead_only_where_no_group_under_way_gets_too_old_by_it(make_bench: Make) -> None:
    bench = make_bench(prompts_per_step=1, max_off_policy_steps=2, on_stale="Drop")
    rollout, trainer = bench.rollout(), bench.trainer()
    first, *stragglers = bench.lease(rollout, 3)
    bench.submit(rollout, first)
    assert bench.pack() == 1
    bench.commit(trainer, 1)
    serving = bench.publish(trainer, 1)
    (young,) = bench.lease(rollout, 1, serving=serving)
    bench.submit(rollout, young, versions=serving)
    assert bench.pack() == 2
    bench.submit(rollout, stragglers[0])
    assert bench.pack() is None, "the other would be 3 steps old in the batch after it"
    bench.commit(trainer, 2)
    assert bench.pack() == 3, "now the trainer waits"


def test_a_short_step_is_never_packed_ahead(make_bench: Make) -> None:
    bench = make_bench(prompts_per_step=2, min_step_batch_fraction=0.5, epochs=1, num_prompts=3)
    rollout, trainer = bench.rollout(), bench.trainer()
    for lease in bench.lease(rollout, 4):
        bench.submit(rollout, lease)
    assert bench.pack() == 1
    assert steps.choose(bench.ledger, more_prompts=False).candidates is None
    bench.commit(trainer, 1)
    choice = steps.choose(bench.ledger, more_prompts=False)
    assert choice.candidates is not None
    assert len(choice.candidates) == 1


def test_a_batch_that_was_packed_ahead_is_served_as_it_is_after_a_rewind(make_bench: Make) -> None:
    bench = make_bench(prompts_per_step=1)
    rollout, trainer = bench.rollout(), bench.trainer()
    for lease in bench.lease(rollout, 2):
        bench.submit(rollout, lease)
    assert [bench.pack(), bench.pack()] == [1, 2]
    before = steps.parts(bench.ledger, step=2, rank=0)
    bench.commit(trainer, 1)
    bench.trainer(attempt=2, resume_step=0)
    assert (groups.committed(bench.ledger), groups.recorded(bench.ledger)) == (0, 2)
    assert steps.parts(bench.ledger, step=2, rank=0) == before


def test_parts_that_were_staged_for_a_batch_that_was_never_recorded_are_replaced(make_bench: Make) -> None:
    bench = make_bench(prompts_per_step=1)
    rollout = bench.rollout()
    torn = [steps.Part(rank=0, seq=seq, data=b"torn") for seq in range(3)]
    assert steps.stage(bench.ledger, step=1, parts=torn, fresh=True)
    bench.reopen()
    (lease,) = bench.lease(rollout, 1)
    bench.submit(rollout, lease)
    assert bench.pack() == 1
    assert steps.parts(bench.ledger, step=1, rank=0) == [lease.group_id.encode()]
    assert not steps.stage(bench.ledger, step=1, parts=torn, fresh=True), "what is recorded keeps its bytes"
    assert steps.parts(bench.ledger, step=1, rank=0) == [lease.group_id.encode()]


def test_a_commit_is_idempotent_and_in_order(make_bench: Make) -> None:
    bench = make_bench()
    rollout, trainer = bench.rollout(), bench.trainer()
    with pytest.raises(errors.LedgerError, match="no batch"):
        bench.commit(trainer, 1)
    bench.step(rollout, trainer)
    assert bench.commit(trainer, 1) is True
    lines = [line for _, line in queries.history_after(bench.ledger, 0) if '"kind":"step"' in line]
    assert len(lines) == 1


def test_a_batch_packed_for_another_number_of_ranks_is_refused(make_bench: Make) -> None:
    bench = make_bench()
    rollout, trainer = bench.rollout(), bench.trainer()
    bench.step(rollout, trainer)
    with pytest.raises(errors.LedgerError, match="packed for 1 trainer ranks"):
        steps.decide(bench.ledger, token=trainer, step=1, rank=1, world_size=2, stop=False)


@pytest.mark.covers("algorithms 10")
def test_after_a_rewind_the_recorded_batches_are_served_again_and_nothing_is_generated(make_bench: Make) -> None:
    bench = make_bench(prompts_per_step=1, max_off_policy_steps=0)
    rollout, trainer = bench.rollout(), bench.trainer()
    published = [bench.step(rollout, trainer, serving=serving) for serving in range(3)]
    before = {step: steps.parts(bench.ledger, step=step, rank=0) for step in (1, 2, 3)}
    again = bench.trainer(attempt=2, resume_step=1)
    assert groups.committed(bench.ledger) == 1
    assert bench.lease(rollout, serving=published[-1]) == []
    for step in (2, 3):
        header = steps.decide(bench.ledger, token=again, step=step, rank=0, world_size=1, stop=False)
        assert header.kind is enums.BatchKind.BATCH
        assert steps.parts(bench.ledger, step=step, rank=0) == before[step]
        assert bench.commit(again, step) is False
        bench.publish(again, step, attempt=2)
    assert len(bench.lease(rollout, serving=versions.head(bench.ledger).version)) == 1


def test_versions_of_undone_steps_are_superseded_and_ids_never_repeat(make_bench: Make) -> None:
    bench = make_bench(prompts_per_step=1)
    rollout, trainer = bench.rollout(), bench.trainer()
    for serving in range(3):
        bench.step(rollout, trainer, serving=serving)
    again = bench.trainer(attempt=2, resume_step=1)
    assert [v.superseded for v in versions.stored_versions(bench.ledger)] == [False, False, True, True]
    assert groups.published_step(bench.ledger) == 1
    assert bench.publish(again, 1, attempt=2) == 4
    assert versions.manifest(bench.ledger, 3).step == 3


def test_where_the_checkpoint_is_older_than_what_was_pruned_the_prompts_are_drawn_again_in_order(
    make_bench: Make,
) -> None:
    bench = make_bench(prompts_per_step=1, max_off_policy_steps=0)
    rollout, trainer = bench.rollout(), bench.trainer()
    published = [bench.step(rollout, trainer, serving=serving) for serving in range(3)]
    checkpoint(bench, trainer, 2)
    drawn = [row["prompt_id"] for row in bench.ledger.db.all("SELECT prompt_id FROM groups ORDER BY queue_key")]
    again = bench.trainer(attempt=2, resume_step=0)
    assert (groups.committed(bench.ledger), groups.recorded(bench.ledger)) == (0, 0)
    # Weights of undone steps sample nothing more; the trainer publishes what it begins with.
    assert bench.lease(rollout, serving=published[-1]) == []
    serving = bench.publish(again, 0, attempt=2)
    redrawn = []
    for _ in range(3):
        (lease,) = bench.lease(rollout, serving=serving)
        redrawn.append(lease.ref.prompt_id)
        bench.submit(rollout, lease, versions=serving)
        step = bench.pack()
        bench.commit(again, step)
        serving = bench.publish(again, step, attempt=2)
    assert redrawn == drawn[:3]


@pytest.mark.covers("algorithms 10")
def test_a_checkpoint_ahead_of_the_ledger_means_that_a_ledger_was_lost(make_bench: Make) -> None:
    bench = make_bench()
    trainer = bench.trainer(attempt=3, resume_step=7)
    assert (groups.committed(bench.ledger), groups.recorded(bench.ledger)) == (7, 7)
    assert queries.snapshot(bench.ledger).degraded == "LedgerLost"
    assert bench.publish(trainer, 7, attempt=3) == 1
    assert groups.capacity(bench.ledger, groups.counts(bench.ledger)) == 4
    checkpoints.commit_checkpoint(
        bench.ledger, token=trainer, step=7, uri="/c/7b", seconds=1.0, final=False, now=bench.now
    )
    assert queries.snapshot(bench.ledger).degraded == "", "until the next checkpoint"


def test_first_step_of_each_attempt_is_kept_when_a_later_attempt_goes_back_behind_it(make_bench: Make) -> None:
    bench = make_bench(prompts_per_step=1, max_off_policy_steps=0)
    rollout, trainer = bench.rollout(), bench.trainer()
    assert sessions.newest_attempts(bench.ledger) == (types.TrainerAttempt(attempt=1),), (
        "it has registered and done no step"
    )
    first_at = bench.now
    bench.step(rollout, trainer, serving=0)
    bench.now += 60.0
    bench.step(rollout, trainer, serving=1)
    assert [one.first_step_at for one in sessions.newest_attempts(bench.ledger)] == [first_at], (
        "the second step changes nothing"
    )
    bench.trainer(attempt=2, resume_step=0)
    bench.reopen()
    assert groups.committed(bench.ledger) == 0, "both steps are undone"
    assert queries.snapshot(bench.ledger).attempts == (
        types.TrainerAttempt(attempt=1, first_step_at=first_at), types.TrainerAttempt(attempt=2),
    )  # fmt: skip


def test_only_the_newest_ten_attempts_are_told(make_bench: Make) -> None:
    bench = make_bench()
    for number in range(1, 13):
        bench.trainer(attempt=number)
    assert [one.attempt for one in sessions.newest_attempts(bench.ledger)] == list(range(3, 13))


def test_all_ranks_learn_of_a_stop_at_the_first_step_that_nobody_has(make_bench: Make) -> None:
    bench = make_bench(prompts_per_step=1)
    rollout = bench.rollout()
    first, second = bench.trainer(rank=0), bench.trainer(rank=1)
    for lease in bench.lease(rollout, 2):
        bench.submit(rollout, lease)
    bench.pack()
    bench.ledger.db.change("UPDATE steps SET world_size = 2")

    def ask(token: str, rank: int, step: int, *, stop: bool = False) -> enums.BatchKind:
        kind = steps.decide(bench.ledger, token=token, step=step, rank=rank, world_size=2, stop=stop).kind
        assert isinstance(kind, enums.BatchKind)
        return kind

    assert ask(first, 0, 1) is enums.BatchKind.BATCH
    assert ask(second, 1, 1, stop=True) is enums.BatchKind.BATCH  # rank 0 has step 1 already
    bench.reopen()
    assert ask(first, 0, 2) is enums.BatchKind.STOP
    assert ask(second, 1, 2, stop=True) is enums.BatchKind.STOP


def test_a_new_trainer_attempt_clears_the_stop(make_bench: Make) -> None:
    bench = make_bench()
    rollout, trainer = bench.rollout(), bench.trainer()
    bench.step(rollout, trainer)
    assert steps.request_stop(bench.ledger) == 0
    again = bench.trainer(attempt=2, resume_step=0)
    assert (
        steps.decide(bench.ledger, token=again, step=1, rank=0, world_size=1, stop=False).kind is enums.BatchKind.BATCH
    )


def test_another_rank_of_the_same_attempt_does_not_forget_what_was_handed_out(make_bench: Make) -> None:
    bench = make_bench()
    rollout, early = bench.rollout(), bench.trainer(rank=1)
    for lease in bench.lease(rollout, 2):
        bench.submit(rollout, lease)
    bench.pack()
    bench.ledger.db.change("UPDATE steps SET world_size = 2")
    assert (
        steps.decide(bench.ledger, token=early, step=1, rank=1, world_size=2, stop=False).kind is enums.BatchKind.BATCH
    )
    late = bench.trainer(rank=0)
    assert steps.request_stop(bench.ledger) == 1
    assert (
        steps.decide(bench.ledger, token=late, step=1, rank=0, world_size=2, stop=False).kind is enums.BatchKind.BATCH
    )


def test_steps_beyond_the_last_are_finished(make_bench: Make) -> None:
    bench = make_bench(max_steps=3)
    trainer = bench.trainer()
    assert (
        steps.decide(bench.ledger, token=trainer, step=4, rank=0, world_size=1, stop=False).kind
        is enums.BatchKind.FINISHED
    )


@pytest.mark.covers("algorithms 2.1")
def test_a_short_step_closes_where_only_failing_groups_are_outstanding(make_bench: Make) -> None:
    bench = make_bench(prompts_per_step=2, max_off_policy_steps=0, min_step_batch_fraction=0.5)
    rollout = bench.rollout()
    good, bad = bench.lease(rollout, 2)
    bench.submit(rollout, good)
    assert bench.pack() is None
    failed = types.MemberFailure(sample_index=1, role="verifier", reason="timeout")
    bench.submit(rollout, bad, rewards=(1.0,), failures=[failed])
    assert bench.pack() == 1
    assert groups.counts(bench.ledger).accepted == 2  # charged as a full step


def test_where_the_data_end_the_run_ends(make_bench: Make) -> None:
    bench = make_bench(prompts_per_step=2, num_prompts=3, epochs=1, max_off_policy_steps=1)
    rollout, trainer = bench.rollout(), bench.trainer()
    bench.step(rollout, trainer)
    (lease,) = bench.lease(rollout, 2, serving=1)
    bench.submit(rollout, lease, versions=1)
    choice = steps.choose(bench.ledger, more_prompts=False)
    assert choice.no_more
    checkpoints.end_data(bench.ledger, step=choice.step)
    assert (
        steps.decide(bench.ledger, token=trainer, step=2, rank=0, world_size=1, stop=False).kind
        is enums.BatchKind.FINISHED
    )


def test_a_publish_of_an_unknown_layout_is_missing_it(make_bench: Make, version_maker: Make) -> None:
    bench = make_bench()
    rollout, trainer = bench.rollout(), bench.trainer()
    for lease in bench.lease(rollout, 2):
        bench.submit(rollout, lease)
    bench.pack()
    bench.commit(trainer, 1)
    answer = versions.publish(
        bench.ledger,
        token=trainer,
        proposal=version_maker(1, 1),
        layout=None,
        stored={"a1": 8},
        evaluate=False,
        now=bench.now,
    )
    assert (answer.outcome, answer.detail) == ("missing", "layout layout is unknown")
    assert versions.head(bench.ledger).version == 0


def test_a_version_is_live_once_and_counts_once(make_bench: Make) -> None:
    bench = make_bench()
    version = bench.step(bench.rollout(), bench.trainer())
    assert versions.mark_live(bench.ledger, version, now=bench.now)
    assert not versions.mark_live(bench.ledger, version, now=bench.now)
    assert versions.find(bench.ledger, version).state is enums.VersionState.LIVE


def test_the_summary_of_a_step_is_read_once_and_again_after_it_was_trained_anew(make_bench: Make) -> None:
    bench = make_bench()
    rollout, trainer = bench.rollout(), bench.trainer()
    bench.step(rollout, trainer)
    (record,) = queries.snapshot(bench.ledger).steps
    assert queries.snapshot(bench.ledger).steps[0] is record
    bench.now += 5
    again = bench.trainer(attempt=2, resume_step=0)
    assert queries.snapshot(bench.ledger).steps == ()
    bench.commit(again, 1)
    assert [step.trained_at for step in queries.snapshot(bench.ledger).steps] == [record.trained_at + 5]


def test_a_sync_that_is_reported_twice_is_one_line_of_history(make_bench: Make) -> None:
    bench = make_bench()
    sync = types.WeightSync(
        version=types.VersionId(1), step=1, fetch_s=1, verify_s=1, pause_s=0.2, apply_s=1, total_s=3, num_bytes=8,
        requests_in_flight=2, finished_at=5.0,
    )  # fmt: skip
    assert [versions.note_sync(bench.ledger, pod="r", sync=sync, now=1.0) for _ in range(2)] == [True, False]
    assert len(queries.history_after(bench.ledger, 0)) == 1


@pytest.mark.covers("algorithms 2.1", "workflows 11")
def test_evaluation_leases_come_first_and_only_to_workers_that_serve_the_version(make_bench: Make) -> None:
    bench = make_bench()
    rollout = bench.rollout()
    versions.begin_evaluation(bench.ledger, step=0, version=0, now=bench.now)
    refs = bench.order.order(0)[:2]
    assert evaluations.open_evaluation(bench.ledger, step=0, refs=refs, sizes={"train": 1}, now=bench.now)
    assert not evaluations.open_evaluation(bench.ledger, step=0, refs=refs, sizes={"train": 1}, now=bench.now)
    leases = bench.lease(rollout, 3)
    assert [lease.kind for lease in leases] == ["evaluation", "evaluation", "train"]
    assert [lease.pinned_version for lease in leases] == [0, 0, None]
    assert (leases[0].group_size, leases[2].group_size) == (1, 2)
    counts = groups.counts(bench.ledger)
    assert (counts.running, counts.accepted) == (1, 0)


@pytest.mark.covers("workflows 11")
def test_an_evaluation_is_finished_once_and_not_begun_again(make_bench: Make) -> None:
    bench = make_bench()
    rollout = bench.rollout()
    versions.begin_evaluation(bench.ledger, step=0, version=0, now=bench.now)
    evaluations.open_evaluation(bench.ledger, step=0, refs=bench.order.order(0)[:1], sizes={"train": 1}, now=bench.now)
    (lease,) = bench.lease(rollout)
    assert bench.submit(rollout, lease, rewards=(1.0,)).outcome == "recorded"
    bench.reopen()
    running = evaluations.running_evaluation(bench.ledger)
    assert (running.finished, running.total) == (1, 1)
    (item,) = evaluations.evaluation_items(bench.ledger, 0)
    assert item.payload is not None
    results = {"train": {"accuracy": 1.0, "score": 1.0, "pass_at_k": 1.0, "n": 1}}
    assert evaluations.finish_evaluation(bench.ledger, step=0, results=results, metrics={"m": 1.0}, now=bench.now)
    assert not evaluations.finish_evaluation(bench.ledger, step=0, results=results, metrics={"m": 1.0}, now=bench.now)
    assert not versions.begin_evaluation(bench.ledger, step=0, version=0, now=bench.now)
    assert evaluations.results(bench.ledger)[0].accuracy == 1.0


def left_out(reason: enums.DropReason, size: int = 2) -> list[types.MemberFailure]:
    return [
        types.MemberFailure(sample_index=index, role="rollout", reason=reason, infra=False) for index in range(size)
    ]


@pytest.mark.covers("graders 4.3")
def test_a_prompt_that_is_left_out_is_counted_and_neither_trained_nor_tried_again(make_bench: Make) -> None:
    bench = make_bench(num_prompts=3, max_off_policy_steps=0)
    rollout = bench.rollout()
    (lease,) = bench.lease(rollout)
    bench.submit(rollout, lease, rewards=(), failures=left_out(enums.DropReason.TOO_LONG))
    assert state_of(bench, lease.group_id) == ("dropped", "too_long", 0)
    assert bench.ledger.counters()["dropped:too_long"] == 1
    assert groups.num_unusable(bench.ledger) == 1
    # The order continues as it would have: the epoch's other prompts, then the next epoch with all three.
    drawn = [lease.ref.prompt_id]
    for _ in range(3):
        (other,) = bench.lease(rollout)
        drawn.append(other.ref.prompt_id)
        bench.submit(rollout, other, rewards=(), failures=left_out(enums.DropReason.TOO_LONG))
    order = [ref.prompt_id for ref in (*bench.order.order(0), *bench.order.order(1))]
    assert drawn == order[:4]


def test_a_restart_does_not_hold_against_prompts_what_was_wrong_with_them_before(make_bench: Make) -> None:
    bench = make_bench()
    rollout = bench.rollout()
    (lease,) = bench.lease(rollout)
    bench.submit(rollout, lease, rewards=(), failures=left_out(enums.DropReason.TOO_LONG))
    bench.reopen()
    assert groups.num_unusable(bench.ledger) == 0


def test_items_of_an_evaluation_that_are_left_out_are_not_missing(make_bench: Make) -> None:
    bench = make_bench()
    rollout = bench.rollout()
    versions.begin_evaluation(bench.ledger, step=0, version=0, now=bench.now)
    evaluations.open_evaluation(bench.ledger, step=0, refs=bench.order.order(0)[:3], sizes={"train": 1}, now=bench.now)
    long, invalid, good = bench.lease(rollout, 3)
    bench.submit(rollout, long, rewards=(), failures=left_out(enums.DropReason.TOO_LONG, 1))
    bench.submit(rollout, invalid, rewards=(), failures=left_out(enums.DropReason.INVALID_RECORD, 1))
    bench.submit(rollout, good, rewards=(1.0,))
    running = evaluations.running_evaluation(bench.ledger)
    assert (running.finished, running.total) == (3, 3)
    assert [item.prompt_id for item in evaluations.evaluation_items(bench.ledger, 0)] == [good.ref.prompt_id]
    assert groups.num_unusable(bench.ledger) == 0, "of training prompts"


def test_a_state_directory_of_another_job_is_refused(make_bench: Make) -> None:
    bench = make_bench()
    sessions.bind(bench.ledger, {"job uid": "a", "spec.seed": "1"}, remedy="use another")
    sessions.bind(bench.ledger, {"job uid": "a", "spec.seed": "1"}, remedy="use another")
    with pytest.raises(errors.ManifestError) as refusal:
        sessions.bind(bench.ledger, {"job uid": "b", "spec.seed": "2"}, remedy="use another")
    assert len(refusal.value.problems) == 2
    assert "job uid = a, but this job has job uid = b; use another" in refusal.value.problems[0]


def test_processes_that_build_another_version_0_are_refused(make_bench: Make) -> None:
    bench = make_bench()
    sessions.agree_on_initial_state(bench.ledger, "")
    sessions.agree_on_initial_state(bench.ledger, "h1")
    sessions.agree_on_initial_state(bench.ledger, "h1")
    with pytest.raises(errors.WeightsError, match="model files differ"):
        sessions.agree_on_initial_state(bench.ledger, "h2")


def test_a_ledger_of_another_schema_is_refused(make_bench: Make, tmp_path: pathlib.Path) -> None:
    bench = make_bench()
    bench.ledger.db.change("PRAGMA user_version = 99")
    bench.ledger.close()
    with pytest.raises(errors.LedgerError, match="schema 99"):
        database.Database(bench.path)


def test_under_wait_a_step_waits_for_its_oldest_groups(make_bench: Make) -> None:
    bench = make_bench(prompts_per_step=1, max_off_policy_steps=2, on_stale="Wait")
    rollout, trainer = bench.rollout(), bench.trainer()
    first, second, third = bench.lease(rollout, 3)
    bench.submit(rollout, third)
    assert bench.pack() == 1
    bench.commit(trainer, 1)
    one = bench.publish(trainer, 1)
    (young,) = bench.lease(rollout, 1, serving=one)
    bench.submit(rollout, young, versions=one)
    assert bench.pack() is None
    bench.submit(rollout, first)
    assert bench.pack() == 2
    assert state_of(bench, second.group_id)[0] == "leased"


@pytest.mark.covers("algorithms 2.3")
def test_under_mask_a_straggler_is_trained_without_its_old_tokens(make_bench: Make) -> None:
    """eta 1. The second group's first token is of version 0, its last one of version 3: batch 3 takes it."""
    bench = make_bench(prompts_per_step=1, max_off_policy_steps=1)
    rollout, trainer = bench.rollout(), bench.trainer()
    straggler, *others = bench.lease(rollout, 2)
    serving = 0
    for step in (1, 2, 3):
        bench.submit(rollout, others.pop(), versions=serving)
        assert bench.pack() == step
        bench.commit(trainer, step)
        serving = bench.publish(trainer, step)
        others += bench.lease(rollout, 1, serving)
    assert bench.submit(rollout, straggler, versions=(0, 3)).outcome == "accepted"
    choice = steps.choose(bench.ledger, more_prompts=True)
    assert choice.candidates is not None
    assert [candidate.group_id for candidate in choice.candidates] == [straggler.group_id]
    assert choice.oldest_trained_step == 2
    assert choice.version_steps == {0: 0, 1: 1, 2: 2, 3: 3}
    assert bench.pack() == 4
    bench.commit(trainer, 4)
    assert audit.audit(bench.ledger.db, max_off_policy_steps=1) == []


@pytest.mark.covers("algorithms 2.3")
def test_under_mask_a_group_of_old_tokens_alone_is_generated_again(make_bench: Make) -> None:
    bench = make_bench(prompts_per_step=1, max_off_policy_steps=1)
    rollout, trainer = bench.rollout(), bench.trainer()
    straggler, *others = bench.lease(rollout, 2)
    serving = 0
    for step in (1, 2):
        bench.submit(rollout, others.pop(), versions=serving)
        assert bench.pack() == step
        bench.commit(trainer, step)
        serving = bench.publish(trainer, step)
        others += bench.lease(rollout, 1, serving)
    assert bench.submit(rollout, straggler, versions=0).outcome == "stale"
    counters = bench.ledger.counters()
    assert (counters["answers:stale"], counters["answer_tokens:stale"]) == (2, 4)
    assert "answers:cancelled" not in counters


def test_answers_that_were_stopped_for_their_age_are_counted_without_a_length(make_bench: Make) -> None:
    bench = make_bench(prompts_per_step=1, max_off_policy_steps=1, on_stale="Drop")
    rollout, trainer = bench.rollout(), bench.trainer()
    bench.lease(rollout, 1)
    for step in (1, 2):
        (lease,) = bench.lease(rollout, 1, step - 1)
        bench.submit(rollout, lease, versions=step - 1)
        assert bench.pack() == step
        bench.commit(trainer, step)
        bench.publish(trainer, step)
    counters = bench.ledger.counters()
    assert counters["answers:cancelled"] == 2
    assert "answer_tokens:cancelled" not in counters
