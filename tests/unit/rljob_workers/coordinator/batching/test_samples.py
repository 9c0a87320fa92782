"""A chosen batch becomes rows and the numbers of its history line."""

import dataclasses
import statistics
from collections.abc import Sequence

import pytest

from rljob_api import types
from rljob_api.manifest.algorithm import AlgorithmSpec, NormalizeSpec, RewardsSpec
from rljob_api.wire import codec
from rljob_testing import makers
from rljob_testing.sections import section
from rljob_workers.coordinator.batching import samples
from rljob_workers.coordinator.ledger import steps

DRGRPO = section(NormalizeSpec, mean="Group", std="None")
NONE = section(NormalizeSpec, mean="None", std="None")


def config(**changes: object) -> AlgorithmSpec:
    return section(AlgorithmSpec, **{"group_size": 2, "prompts_per_step": 2, "normalize_reward": DRGRPO, **changes})


def candidate(order: int, group: types.PromptGroup, *, min_step: int = 0, finished_step: int = 0) -> steps.Candidate:
    return steps.Candidate(
        group_id=types.GroupId(f"g{order}"), lease_order=order, min_step=min_step, finished_step=finished_step,
        num_failures=0, queued_s=0.0, generate_started_at=1.0, generate_finished_at=2.0, verify_s=0.1,
        payload=codec.encode(group),
    )  # fmt: skip


def assemble(
    groups: Sequence[types.PromptGroup], *, chosen: AlgorithmSpec | None = None, step: int = 1
) -> samples.Assembled:
    candidates = tuple(candidate(order, group) for order, group in enumerate(groups))
    choice = steps.Choice(step=step, candidates=candidates, version_steps={0: 0})
    return samples.assemble(choice, chosen or config())


@pytest.mark.covers("algorithms 2.2", "algorithms 11")
def test_age_is_split_into_in_flight_and_in_queue() -> None:
    """V 3: a token of step 1, finished under step 2; and one of step 2, finished under step 3."""
    group = makers.make_group(rewards=(1.0, 0.0))
    old, young = candidate(0, group, min_step=1, finished_step=2), candidate(1, group, min_step=2, finished_step=3)
    choice = steps.Choice(step=4, candidates=(old, young), version_steps={0: 1})
    summary = samples.assemble(choice, config()).summary
    assert summary["staleness"] == {"1": 1, "2": 1}
    assert (summary["staleness_inflight_mean"], summary["staleness_queue_mean"]) == (1.0, 0.5)
    assert summary["staleness_token_mean"] == 2.0


@pytest.mark.covers("algorithms 11")
def test_rewards_are_reported_raw_shaped_and_as_success() -> None:
    shaped = config(rewards=section(RewardsSpec, bias=-0.5, scale=2))
    summary = assemble([makers.make_group(rewards=(1.0, 0.0)), makers.make_group(rewards=(1.0, 1.0))], chosen=shaped)
    assert summary.summary["reward_mean"] == 0.75
    assert summary.summary["shaped_mean"] == 0.5
    assert summary.summary["success"] == 0.75


@pytest.mark.parametrize("left_out", [(), (1.0, 1.0), (0.0, 0.0, 1.0, 1.0, 0.25)])
def test_rewards_of_all_graded_answers_are_reported_besides_those_that_are_trained(left_out: Sequence[float]) -> None:
    trained = (1.0, 0.0, 0.5, 0.0)
    groups = [makers.make_group(rewards=trained[:2]), makers.make_group(rewards=trained[2:])]
    choice = steps.Choice(
        step=1,
        candidates=tuple(candidate(order, group) for order, group in enumerate(groups)),
        version_steps={0: 0},
        left_out=steps.Rewards(
            num_rows=len(left_out), total=sum(left_out), total_squares=sum(reward**2 for reward in left_out)
        ),
    )
    summary = samples.assemble(choice, config()).summary
    assert (summary["reward_mean"], summary["left_out_rows"]) == (0.375, len(left_out))
    assert summary["sampled_reward_mean"] == pytest.approx(statistics.fmean(trained + tuple(left_out)))
    assert summary["sampled_reward_std"] == pytest.approx(statistics.pstdev(trained + tuple(left_out)))


@pytest.mark.covers("algorithms 11")
def test_advantages_are_reported_over_rows() -> None:
    """[0.5, -0.5] and [0, 0]: mean 0, deviation sqrt(0.5 / 4)."""
    summary = assemble([makers.make_group(rewards=(1.0, 0.0)), makers.make_group(rewards=(1.0, 1.0))]).summary
    assert (summary["advantage_mean"], summary["advantage_min"], summary["advantage_max"]) == (0.0, -0.5, 0.5)
    assert summary["advantage_std"] == pytest.approx(0.353553, abs=1e-6)


@pytest.mark.covers("algorithms 11")
def test_a_group_whose_advantages_are_all_zero_is_counted() -> None:
    made = assemble([makers.make_group(rewards=(1.0, 0.0)), makers.make_group(rewards=(1.0, 1.0))])
    assert made.zero_advantage_groups == made.summary["zero_advantage_groups"] == 1


def test_what_the_trainer_makes_of_rewards_is_not_reported_before_it_does() -> None:
    chosen = config(normalize_reward=NONE, advantage_estimator="ppo")
    made = assemble([makers.make_group(rewards=(0.0, 0.0))], chosen=chosen)
    assert made.zero_advantage_groups == 0
    assert not {"zero_advantage_groups", "advantage_mean"} & made.summary.keys()


@pytest.mark.covers("algorithms 11")
def test_lengths_are_reported_apart_for_right_and_wrong_rows() -> None:
    rows = [
        makers.make_trajectory(completion=range(1, 1 + length), reward=reward, sample_index=index)
        for index, (length, reward) in enumerate([(2, 1.0), (4, 1.0), (5, 0.0)])
    ]
    group = dataclasses.replace(makers.make_group(rewards=(1.0,)), trajectories=tuple(rows))
    summary = assemble([group]).summary
    assert (summary["response_tokens_correct"], summary["response_tokens_incorrect"]) == (3.0, 5.0)
    assert summary["response_tokens_max"] == 5
    assert "response_tokens_correct" not in assemble([makers.make_group(rewards=(0.0, 0.0))]).summary


def test_a_row_earns_its_reward_on_its_last_token_where_the_trainer_makes_advantages() -> None:
    chosen = config(normalize_reward=NONE, advantage_estimator="ppo")
    first, second = assemble([makers.make_group(rewards=(1.0, 0.25))], chosen=chosen).samples
    assert (list(first.rewards), list(second.rewards)) == ([0.0, 1.0], [0.0, 0.25])
    assert list(first.advantages) == [0.0, 0.0]
    assert list(first.turn_ids) == [0, 0]


def test_rows_carry_no_rewards_where_advantages_come_ready() -> None:
    (row, _) = assemble([makers.make_group(rewards=(1.0, 0.0))]).samples
    assert (len(row.rewards), len(row.turn_ids)) == (0, 0)
    assert list(row.advantages) == [0.5, 0.5]


def turns_row(rewards: tuple[float, ...], *, truncated: bool = False) -> types.Trajectory:
    """Two sampled tokens of turn 0, one inserted, one sampled of turn 1."""
    return types.Trajectory(
        tokens=types.ints([5, 6, 7, 8, 9]),
        loss_mask=types.mask([0, 1, 1, 0, 1]),
        logprobs=types.floats([0.0, -0.5, -0.5, 0.0, -0.5]),
        versions=types.ints([-1, 0, 0, -1, 0]),
        turn_ids=types.ints([-1, 0, 0, -1, 1]),
        truncated=truncated, reward=sum(rewards), raw_reward=1.0, verdict=makers.make_verdict(1.0), sample_index=0,
        num_turns=2, turn_rewards=rewards,
    )  # fmt: skip


@pytest.mark.covers("algorithms 3")
def test_turn_rewards_are_shaped_each_and_stand_on_the_last_token_of_their_turn() -> None:
    chosen = config(
        group_size=1, normalize_reward=NONE, advantage_estimator="ppo", rewards=section(RewardsSpec, bias=-0.5, scale=2)
    )
    group = dataclasses.replace(makers.make_group(rewards=(1.0,)), trajectories=(turns_row((0.0, 1.0)),))
    (row,) = assemble([group], chosen=chosen).samples
    assert list(row.rewards) == [0.0, -1.0, 1.0]
    assert list(row.turn_ids) == [0, 0, 1]
    assert row.shaped_reward == 0.0


def test_zero_truncated_takes_the_reward_of_the_cut_turn_alone() -> None:
    chosen = config(group_size=1, normalize_reward=NONE, advantage_estimator="ppo", zero_truncated=True)
    group = dataclasses.replace(
        makers.make_group(rewards=(1.0,)), trajectories=(turns_row((0.5, 1.0), truncated=True),)
    )
    (row,) = assemble([group], chosen=chosen).samples
    assert list(row.rewards) == [0.0, 0.5, 0.0]


def test_rows_of_one_group_carry_its_index_in_the_step() -> None:
    made = assemble([makers.make_group(rewards=(1.0, 0.0)), makers.make_group(rewards=(1.0, 1.0))])
    assert [row.group for row in made.samples] == [0, 0, 1, 1]


@pytest.mark.covers("workflows 9")
@pytest.mark.parametrize("masked", [False, True])
def test_a_step_of_oats_actor_is_the_published_example(masked: bool) -> None:
    rows = [
        makers.make_trajectory(completion=range(1, 1 + length), reward=1.0, sample_index=index, truncated=cut)
        for index, (length, cut) in enumerate([(3, False), (2, True)])
    ]
    group = dataclasses.replace(makers.make_group(rewards=(1.0,)), trajectories=tuple(rows))
    chosen = config(normalize_reward=NONE, advantage_estimator="ppo", zero_truncated=True, mask_truncated=masked)
    made = assemble([group], chosen=chosen)
    assert [list(row.rewards) for row in made.samples] == [[0, 0, 1], [0, 0]]
    assert [not row.masked for row in made.samples] == [True, not masked]
    told = {key: made.summary[f"actor/{key}"] for key in ("rewards", "avg_reward", "no_eos_count", "response_tok_len")}
    assert told == {"rewards": 1.0, "avg_reward": 0.5, "no_eos_count": 1, "response_tok_len": 2.5}
    assert (made.summary["actor/num_data"], made.summary["actor/total_time"]) == (2, pytest.approx(1.1))


@pytest.mark.covers("workflows 9")
@pytest.mark.parametrize(("chars", "mean"), [((7, 4), 5.5), ((7, 0), 3.5), ((7, None), None)])
def test_the_mean_characters_are_told_where_every_response_says_its_own(
    chars: tuple[int | None, ...], mean: float | None
) -> None:
    group = makers.make_group(rewards=(1.0, 0.0))
    rows = [dataclasses.replace(row, output_chars=n) for row, n in zip(group.trajectories, chars, strict=True)]
    made = assemble([dataclasses.replace(group, trajectories=rows)])
    assert made.summary.get("actor/generate_avg_str_len") == mean
