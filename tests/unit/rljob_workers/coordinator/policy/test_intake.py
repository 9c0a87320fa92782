import dataclasses

import pytest

from rljob_api import enums, types
from rljob_api.manifest.data import FilterGroupsSpec
from rljob_api.manifest.job import JobSpec
from rljob_testing import makers
from rljob_testing.sections import changed, make_spec, section
from rljob_workers.coordinator.policy import submission

SPEC = make_spec(group_size=4, max_infra_attempts_per_prompt=3)
TRAIN, EVALUATION = enums.GroupKind.TRAIN, enums.GroupKind.EVALUATION
Outcome, Drop, Requeue = enums.TrajectoryOutcome, enums.DropReason, submission.Requeue


def facts(
    *, infra: int = 0, data: int = 0, batch_index: int = 0, kind: enums.GroupKind = TRAIN, pinned: int | None = None
) -> submission.Facts:
    return submission.Facts(
        kind=kind, group_size=4, infra_attempts=infra, data_attempts=data, batch_index=batch_index,
        version_steps={0: 0, 1: 1, 2: 2, 7: 1}, pinned_version=pinned,
    )  # fmt: skip


def failure(index: int, *, infra: bool = True) -> types.MemberFailure:
    return types.MemberFailure(sample_index=index, role="verifier", reason="timeout", infra=infra)


def judge(
    group: types.PromptGroup,
    known: submission.Facts,
    *,
    filters: FilterGroupsSpec | None = None,
    spec: JobSpec = SPEC,
) -> submission.Decision:
    chosen = spec if filters is None else changed(spec, filter_groups=filters)
    return submission.evaluate(group, known, spec=chosen)


def test_a_complete_group_is_accepted() -> None:
    assert judge(makers.make_group(rewards=(1, 0, 0, 1)), facts()).outcome is Outcome.ACCEPTED


@pytest.mark.covers("workflows 6.3")
def test_a_short_group_is_never_accepted_by_default_and_its_prompt_is_tried_again() -> None:
    found = judge(makers.make_group(rewards=(1, 0, 0), failures=[failure(3)]), facts())
    assert (found.outcome, found.requeue, found.infra, found.data) == (
        Outcome.INFRA_FAILURE, Requeue.NEXT_ATTEMPT, 1, 0,
    )  # fmt: skip


@pytest.mark.covers("workflows 6.3")
def test_a_short_group_is_accepted_with_its_true_size_where_the_policy_allows_it() -> None:
    half = changed(SPEC, min_group_fraction=0.5)
    short = makers.make_group(rewards=(1, 0), failures=[failure(2), failure(3)])
    assert judge(short, facts(), spec=half).outcome is Outcome.ACCEPTED
    lone = makers.make_group(rewards=(1,), failures=[failure(1), failure(2), failure(3)])
    assert judge(lone, facts(), spec=half).outcome is Outcome.INFRA_FAILURE


def test_a_prompt_that_ran_out_of_infra_attempts_starts_afresh_at_the_tail() -> None:
    found = judge(makers.make_group(rewards=(1, 0, 0), failures=[failure(3)]), facts(infra=2))
    assert (found.drop, found.requeue) == (Drop.INFRA_EXHAUSTED, Requeue.TAIL)


def test_a_prompt_that_ran_out_of_data_attempts_ends() -> None:
    found = judge(makers.make_group(rewards=(1, 0, 0), failures=[failure(3, infra=False)]), facts(data=1))
    assert (found.drop, found.requeue, found.data) == (Drop.DATA_EXHAUSTED, Requeue.NO, 1)


@pytest.mark.parametrize("reason", [Drop.TOO_LONG, Drop.INVALID_RECORD])
@pytest.mark.parametrize("kind", [TRAIN, EVALUATION])
def test_a_prompt_whose_record_is_left_out_ends_at_once(reason: enums.DropReason, kind: enums.GroupKind) -> None:
    failed = [
        types.MemberFailure(sample_index=index, role="rollout", reason=reason, detail="why", infra=False)
        for index in range(4)
    ]
    found = judge(makers.make_group(rewards=(), failures=failed), facts(kind=kind))
    assert (found.outcome, found.drop, found.requeue, found.detail) == (Outcome.INVALID, reason, Requeue.NO, "why")


@pytest.mark.parametrize("reason", ["DataError", "RecordError"])
@pytest.mark.parametrize("kind", [TRAIN, EVALUATION])
def test_a_record_that_nobody_can_use_ends_the_run_and_its_prompt_stays(reason: str, kind: enums.GroupKind) -> None:
    failed = [
        types.MemberFailure(sample_index=index, role="verifier", reason=reason, detail="no gold", infra=False)
        for index in range(4)
    ]
    found = judge(makers.make_group(rewards=(), failures=failed), facts(kind=kind, data=9))
    assert (found.ends_run, found.drop, found.requeue, found.detail) == (True, None, Requeue.NEXT_ATTEMPT, "no gold")


def test_no_other_failure_ends_the_run() -> None:
    for infra in (True, False):
        assert not judge(makers.make_group(rewards=(1, 0, 0), failures=[failure(3, infra=infra)]), facts()).ends_run


@pytest.mark.covers("algorithms 1")
def test_the_age_check_looks_at_the_steps_of_versions_not_at_their_ids() -> None:
    # Version 7 was published after a rewind and is of step 1.
    group = makers.make_group(rewards=(1, 0, 0, 1), versions=7)
    assert judge(group, facts(batch_index=2)).outcome is Outcome.ACCEPTED
    found = judge(group, facts(batch_index=3))
    assert (found.outcome, found.drop, found.requeue) == (Outcome.STALE, Drop.STALE, Requeue.HEAD)


@pytest.mark.covers("algorithms 2.2")
def test_one_old_token_makes_the_whole_group_old_unless_it_is_masked() -> None:
    group = makers.make_group(rewards=(1, 0, 0, 1), versions=(0, 2))
    dropping = changed(SPEC, on_stale="Drop")
    assert judge(group, facts(batch_index=2), spec=dropping).outcome is Outcome.STALE
    assert judge(group, facts(batch_index=2)).outcome is Outcome.ACCEPTED


def test_tokens_of_a_step_that_was_undone_for_good_are_not_used() -> None:
    found = judge(makers.make_group(rewards=(1, 0, 0, 1), versions=2), facts(batch_index=1))
    assert (found.outcome, found.drop, found.requeue) == (Outcome.STALE, Drop.REWOUND, Requeue.HEAD)


def test_a_filtered_group_is_replaced_by_another_prompt() -> None:
    zero_spread = section(FilterGroupsSpec, enabled=True, max_extra_groups=9)
    found = judge(makers.make_group(rewards=(1, 1, 1, 1)), facts(), filters=zero_spread)
    assert (found.outcome, found.drop, found.requeue) == (Outcome.FILTERED, Drop.ZERO_SPREAD, Requeue.NO)


@pytest.mark.covers("workflows 6.2")
def test_a_group_that_the_users_predicate_left_out_is_replaced_by_another_prompt() -> None:
    group = dataclasses.replace(makers.make_group(rewards=(1, 0, 0, 1)), rejected=True)
    found = judge(group, facts())
    assert (found.outcome, found.drop, found.requeue) == (Outcome.FILTERED, Drop.REJECTED, Requeue.NO)


@pytest.mark.parametrize(
    ("group", "sentence"),
    [
        pytest.param(makers.make_group(rewards=(1, 0, 0)), "members", id="a member is missing"),
        pytest.param(
            makers.make_group(rewards=(1, 0, 0, 1), failures=[failure(0)]), "members", id="a member counts twice"
        ),
        pytest.param(makers.make_group(rewards=(1, 0, 0, 1), versions=9), "unknown versions", id="an unknown version"),
    ],
)
def test_a_malformed_group_is_invalid(group: types.PromptGroup, sentence: str) -> None:
    found = judge(group, facts())
    assert found.outcome is Outcome.INVALID
    assert sentence in found.detail
    assert found.data == 1


def of_turns(row: types.Trajectory, *turns: int) -> list[types.Trajectory]:
    before = row.prompt_len
    count = len(row.tokens) - before
    return [dataclasses.replace(row, turn_ids=types.ints([-1] * before + [turn] * count)) for turn in turns]


@pytest.mark.covers("workflows 5.2")
def test_a_member_may_have_a_row_per_turn() -> None:
    group = makers.make_group(rewards=(1, 0, 0, 1))
    rows = [made for row in group.trajectories for made in of_turns(row, 0, 1, 2)]
    assert judge(dataclasses.replace(group, trajectories=rows), facts()).outcome is Outcome.ACCEPTED
    lost = dataclasses.replace(group, trajectories=rows[3:], failures=[failure(0)])
    assert judge(lost, facts()).outcome is Outcome.INFRA_FAILURE


@pytest.mark.covers("workflows 5.2")
def test_a_member_whose_rows_repeat_a_turn_is_malformed() -> None:
    group = makers.make_group(rewards=(1, 0, 0, 1))
    rows = [*of_turns(group.trajectories[0], 0, 0), *group.trajectories[1:]]
    found = judge(dataclasses.replace(group, trajectories=rows), facts())
    assert (found.outcome, found.detail) == (
        Outcome.INVALID, "member 0 has 2 rows that do not follow one another turn by turn",
    )  # fmt: skip


@pytest.mark.covers("algorithms 4")
def test_an_infrastructure_failure_passed_off_as_a_row_is_invalid() -> None:
    group = makers.make_group(rewards=(1, 0, 0, 1))
    rows = [dataclasses.replace(group.trajectories[0], verdict=makers.make_verdict(None)), *group.trajectories[1:]]
    found = judge(dataclasses.replace(group, trajectories=rows), facts())
    assert found.outcome is Outcome.INVALID


@pytest.mark.covers("algorithms 9", "workflows 11")
def test_an_evaluation_is_wholly_on_its_pinned_version() -> None:
    pinned = facts(kind=EVALUATION, pinned=2, batch_index=50)
    assert judge(makers.make_group(rewards=(1, 0, 0, 1), versions=2), pinned).outcome is Outcome.RECORDED
    assert judge(makers.make_group(rewards=(1, 0, 0, 1), versions=(1, 2)), pinned).outcome is Outcome.INVALID


@pytest.mark.covers("workflows 11")
def test_a_failed_evaluation_item_is_retried_then_left_out_never_scored() -> None:
    short = makers.make_group(rewards=(1, 0, 0), failures=[failure(3)], versions=2)
    assert judge(short, facts(kind=EVALUATION, pinned=2)).requeue is Requeue.NEXT_ATTEMPT
    found = judge(short, facts(kind=EVALUATION, pinned=2, infra=2))
    assert (found.drop, found.requeue) == (Drop.INFRA_EXHAUSTED, Requeue.NO)


@pytest.mark.covers("algorithms 4")
def test_a_filter_may_look_at_one_named_reward() -> None:
    row = makers.make_trajectory(reward=1.0)
    verdict = dataclasses.replace(row.verdict, parts={"format": 0.25})
    assert submission.metric(dataclasses.replace(row, verdict=verdict), "format") == 0.25
    assert submission.metric(row, "sum") == 1.0


@pytest.mark.covers("algorithms 12.13")
def test_turn_rewards_are_refused_where_one_reward_per_row_is_normalised() -> None:
    group = makers.make_group(rewards=(1, 0, 0, 1))
    rows = [dataclasses.replace(row, turn_rewards=(row.reward,)) for row in group.trajectories]
    rewarded = dataclasses.replace(group, trajectories=rows)
    assert judge(rewarded, facts(), spec=make_spec(group_size=4, advantage_estimator="ppo")).outcome is Outcome.ACCEPTED
    found = judge(rewarded, facts())
    assert found.outcome is Outcome.INVALID
    assert "normalises one reward per row" in found.detail
