"""From scored groups to advantages over both sides of the wire: assembled, packed, sent, read, estimated.

Two sides agree on one contract here: which token earns what, in which turn, group and row, however rows are packed.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import pytest
import torch

from rljob_api import types
from rljob_api.manifest.algorithm import NormalizeSpec
from rljob_api.wire import codec
from rljob_testing import makers
from rljob_testing.sections import make_spec, section
from rljob_testing.trainer_makers import make_returns
from rljob_workers.coordinator.batching import packing, samples
from rljob_workers.coordinator.ledger import steps
from rljob_workers.trainer import pre_update
from rljob_workers.trainer.model import batch_tensors

CPU = torch.device("cpu")
NONE = section(NormalizeSpec, mean="None", std="None")
# Group, member, and its advantages token by token.
Found = dict[tuple[str, int], list[float]]


class Ranks:
    """One rank."""

    def score(self, tensors: batch_tensors.BatchTensors) -> torch.Tensor:
        raise AssertionError("nothing here needs a forward")

    def total(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def largest(self, values: Sequence[float]) -> list[float]:
        return list(values)


def member(index: int, turns: Sequence[int], *, reward: float = 0.0, rewards: Sequence[float] = ()) -> types.Trajectory:
    """A row with `turns[k]` sampled tokens in turn k and one inserted token after each turn but the last."""
    tokens, mask, ids = [5, 6], [0, 0], [-1, -1]
    for turn, count in enumerate(turns):
        tokens += [10 + turn] * count + [7]
        mask += [1] * count + [0]
        ids += [turn] * count + [-1]
    tokens, mask, ids = tokens[:-1], mask[:-1], ids[:-1]
    return types.Trajectory(
        tokens=types.ints(tokens), loss_mask=types.mask(mask), turn_ids=types.ints(ids),
        logprobs=types.floats([-0.5 * flag for flag in mask]), versions=types.ints([flag - 1 for flag in mask]),
        truncated=False, reward=reward, raw_reward=reward, verdict=makers.make_verdict(1.0), sample_index=index,
        num_turns=len(turns), turn_rewards=tuple(rewards),
    )  # fmt: skip


def advantages(
    groups: Sequence[Sequence[types.Trajectory]],
    returns: Mapping[str, object],
    *,
    max_tokens: int,
    reward_norm: NormalizeSpec = NONE,
) -> Found:
    algorithm = make_spec(returns, normalize_reward=reward_norm).algorithm
    candidates = tuple(
        steps.Candidate(
            group_id=types.GroupId(f"g{order}"), lease_order=order, min_step=0, finished_step=0, num_failures=0,
            queued_s=0.0, generate_started_at=0.0, generate_finished_at=0.0, verify_s=0.0,
            payload=codec.encode(dataclasses.replace(makers.make_group(), trajectories=tuple(rows))),
        )
        for order, rows in enumerate(groups)
    )  # fmt: skip
    choice = steps.Choice(step=1, candidates=candidates, version_steps={0: 0})
    shape = packing.Shape(
        seed=1, minibatches=1, epochs=1, world_size=1, max_tokens=max_tokens, keep_zero_advantage=True,
        keep_masked=True,
    )  # fmt: skip
    packed = packing.pack(samples.assemble(choice, algorithm).samples, step=1, shape=shape)
    sent = [codec.decode_micro_batch(codec.encode_micro_batch(part)) for part in packed.micro_batches[0]]
    work = [[pre_update.Work(batch_tensors.to_tensors(part, CPU), idle=False) for part in sent]]
    pre_update.prepare(work, Ranks(), None, algorithm)
    found: Found = {}
    for part, item in zip(sent, work[0], strict=True):
        for place, row in enumerate(part.rows):
            tokens = item.tensors.advantages[item.tensors.row_index == place]
            found[row.group_id, row.sample_index] = tokens.tolist()
    return found


# One micro-batch for all, or one for each row.
BUDGETS = pytest.mark.parametrize("max_tokens", [1000, 6])


@BUDGETS
def test_one_reward_of_a_row_is_discounted_from_its_last_token(max_tokens: int) -> None:
    groups = [[member(0, [3], reward=1.0), member(1, [1], reward=2.0)], [member(0, [2], reward=-1.0)]]
    found = advantages(groups, make_returns(gamma=0.5), max_tokens=max_tokens)
    assert found == {("g0", 0): [0.25, 0.5, 1.0], ("g0", 1): [2.0], ("g1", 0): [-0.5, -1.0]}


@pytest.mark.covers("algorithms 3")
@BUDGETS
def test_rewards_of_turns_stand_on_their_last_tokens_and_inserted_text_takes_no_time(max_tokens: int) -> None:
    """Tokens [a b | c d] earn [0, 1 | 0, 2], gamma .5: from the end 2, 1, 1 + .5, .75."""
    groups = [[member(0, [2, 2], rewards=(1.0, 2.0))]]
    found = advantages(groups, make_returns(gamma=0.5), max_tokens=max_tokens)
    assert found == {("g0", 0): [0.75, 1.5, 1.0, 2.0]}


@pytest.mark.covers("algorithms 5.3")
@BUDGETS
def test_with_the_turn_as_unit_all_tokens_of_a_turn_share_its_advantage(max_tokens: int) -> None:
    groups = [[member(0, [2, 1], rewards=(1.0, 4.0)), member(1, [1], rewards=(3.0,))]]
    found = advantages(groups, make_returns(gamma=0.5, unit="Turn"), max_tokens=max_tokens)
    assert found == {("g0", 0): [3.0, 3.0, 4.0], ("g0", 1): [3.0]}


@BUDGETS
def test_a_group_baseline_over_tokens_knows_which_rows_belong_together(max_tokens: int) -> None:
    """Group 0: tokens 1, 1, 1, 0 around .75; group 1: equal."""
    groups = [
        [member(0, [3], reward=1.0), member(1, [1], reward=0.0)],
        [member(0, [1], reward=5.0), member(1, [2], reward=5.0)],
    ]
    returns = make_returns(normalize=section(NormalizeSpec, mean="Group", std="None"))
    found = advantages(groups, returns, max_tokens=max_tokens)
    assert found == {
        ("g0", 0): [0.25] * 3, ("g0", 1): [-0.75], ("g1", 0): [0.0], ("g1", 1): [0.0, 0.0],
    }  # fmt: skip


@BUDGETS
def test_a_baseline_over_rows_comes_before_the_discount(max_tokens: int) -> None:
    """REINFORCE++ with its baseline: rewards 1, 0 become .5, -.5 before gamma .5 carries them back."""
    baseline = section(NormalizeSpec, mean="Group", std="None")
    groups = [[member(0, [2], reward=1.0), member(1, [1], reward=0.0)]]
    found = advantages(groups, make_returns(gamma=0.5), max_tokens=max_tokens, reward_norm=baseline)
    assert found == {("g0", 0): [0.25, 0.5], ("g0", 1): [-0.5]}
