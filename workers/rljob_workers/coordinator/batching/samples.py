"""From the groups of a step to its rows with advantages, and to the numbers that the step's history line reports. Pure.

Rows are in (lease order, sample index) order, never in order of arrival.
"""

import collections
import dataclasses
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from rljob_api import enums, types
from rljob_api.manifest.algorithm import AlgorithmSpec
from rljob_api.wire import codec
from rljob_workers.coordinator.batching import advantage, blocks, shaping
from rljob_workers.coordinator.ledger import steps
from rljob_workers.coordinator.policy import submission
from rljob_workers.coordinator.reporting import oat_metrics


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """A step before packing. `summary` becomes part of the step's history line."""

    group_ids: tuple[types.GroupId, ...]
    samples: tuple[types.TrainSample, ...]
    summary: dict[str, object]
    zero_advantage_groups: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A row of the step. shaped: its reward, or the sum of its turns'; turns: shaped rewards by turn id, if any."""

    candidate: steps.Candidate
    row: types.Trajectory
    group: int
    shaped: float
    turns: tuple[float, ...]
    version_steps: types.Ints
    pictures: Sequence[types.Picture] = ()


def assemble(choice: steps.Choice, algorithm: AlgorithmSpec) -> Assembled:
    """Return rows and summary of a chosen batch, whose candidates must be set. Batch index V is `choice.step` - 1."""
    assert choice.candidates is not None, "a choice without candidates cannot be assembled"
    ordered = sorted(choice.candidates, key=lambda candidate: candidate.lease_order)
    groups = [_members(candidate, index, choice.version_steps, algorithm) for index, candidate in enumerate(ordered)]
    sizes = [len(members) for members in groups]
    members = [member for group in groups for member in group]
    values = advantage.normalize(algorithm.normalize_reward, [member.shaped for member in members], sizes)
    samples = tuple(
        _sample(member, value, index, algorithm)
        for index, (member, value) in enumerate(zip(members, values, strict=True))
    )
    # What the trainer makes of rewards is the trainer's to report; a teacher has something to say of every group.
    zero = 0 if algorithm.trainer_returns or choice.taught else _zero_groups(values, sizes)
    summary = _summary(choice, ordered, members) | _actor(ordered, members, algorithm)
    if not algorithm.trainer_returns:
        summary |= {"zero_advantage_groups": zero} | _advantages(values)
    return Assembled(
        group_ids=tuple(candidate.group_id for candidate in ordered),
        samples=samples,
        summary=summary,
        zero_advantage_groups=zero,
    )


def assemble_examples(choice: steps.Choice) -> Assembled:
    """Return rows and summary of a supervised step: every advantage is 1, and every token as new as the step."""
    assert choice.candidates is not None, "a choice without candidates cannot be assembled"
    rows = [
        row
        for candidate in choice.candidates
        for row in codec.decode(types.PromptGroup, candidate.payload, checked=True).trajectories
    ]
    lengths = [row.num_sampled for row in rows]
    samples = tuple(
        types.TrainSample(
            group_id=candidate.group_id,
            sample_index=row.sample_index,
            row=index,
            tokens=row.tokens,
            loss_mask=row.loss_mask,
            logprobs=row.logprobs,
            version_steps=blocks.view(np.full(count, choice.step - 1, dtype=np.int32)),
            advantages=blocks.view(np.ones(count, dtype=np.float32)),
            raw_reward=row.raw_reward,
            shaped_reward=row.reward,
            group=index,
        )
        for index, (candidate, row, count) in enumerate(zip(choice.candidates, rows, lengths, strict=True))
    )
    return Assembled(
        group_ids=tuple(candidate.group_id for candidate in choice.candidates),
        samples=samples,
        summary={
            "phase": enums.TrainingPhase.SFT,
            "groups": len(rows),
            "rows": len(rows),
            "tokens": sum(lengths),
            "response_tokens_mean": statistics.fmean(lengths),
            "response_tokens_max": max(lengths),
        },
        zero_advantage_groups=0,
    )


def _members(
    candidate: steps.Candidate, group: int, version_steps: Mapping[int, int], algorithm: AlgorithmSpec
) -> list[_Member]:
    submitted = codec.decode(types.PromptGroup, candidate.payload, checked=True)
    return [
        _member(candidate, group, row, version_steps, algorithm, submitted.pictures)
        for row in sorted(submitted.trajectories, key=lambda row: row.sample_index)
    ]


def _member(
    candidate: steps.Candidate,
    group: int,
    row: types.Trajectory,
    version_steps: Mapping[int, int],
    algorithm: AlgorithmSpec,
    pictures: Sequence[types.Picture],
) -> _Member:
    cut, count = row.truncated, row.num_sampled
    turns: tuple[float, ...] = ()
    if row.turn_rewards:
        turns = shaping.shape_turns(algorithm, rewards=row.turn_rewards, truncated=cut, num_tokens=count)
        shaped = math.fsum(turns)
    else:
        shaped = shaping.shape(algorithm, reward=row.reward, truncated=cut, num_tokens=count)
    return _Member(
        candidate=candidate,
        row=row,
        group=group,
        shaped=shaped,
        turns=turns,
        version_steps=_steps_of(row, version_steps),
        pictures=pictures,
    )


def _steps_of(row: types.Trajectory, version_steps: Mapping[int, int]) -> types.Ints:
    """Return the step of the version that sampled each token [N]."""
    runs = row.version_runs()
    steps = np.array([version_steps[version] for version, _ in runs], dtype=np.int32)
    return blocks.view(np.repeat(steps, [count for _, count in runs]))


def _sample(member: _Member, value: float, index: int, algorithm: AlgorithmSpec) -> types.TrainSample:
    row, count = member.row, len(member.version_steps)
    returns = algorithm.trainer_returns
    turn_ids = types.NO_INTS
    if returns:
        turn_ids = blocks.view(blocks.ints(row.turn_ids)[np.frombuffer(row.loss_mask, dtype=np.bool_)])
    return types.TrainSample(
        group_id=member.candidate.group_id,
        sample_index=row.sample_index,
        row=index,
        tokens=row.tokens,
        loss_mask=row.loss_mask,
        logprobs=row.logprobs,
        version_steps=member.version_steps,
        advantages=blocks.view(np.full(count, 0.0 if returns else value, dtype=np.float32)),
        raw_reward=row.raw_reward,
        shaped_reward=member.shaped,
        truncated=row.truncated,
        masked=algorithm.mask_truncated and row.truncated,
        group=member.group,
        rewards=_token_rewards(turn_ids, member.turns, value) if returns else types.NO_FLOATS,
        turn_ids=turn_ids,
        pictures=member.pictures,
    )


def _token_rewards(turn_ids: types.Ints, turns: Sequence[float], value: float) -> types.Floats:
    """Return what each sampled token earned [N]: the row's value on the last one, or each turn's on its last."""
    earned = np.zeros(len(turn_ids), dtype=np.float32)
    if not turns:
        earned[-1] = value
    else:
        ids = blocks.ints(turn_ids)
        last = np.flatnonzero(np.append(ids[1:] != ids[:-1], True))
        earned[last] = np.array(turns, dtype=np.float64)[ids[last]]
    return blocks.view(earned)


def _zero_groups(values: Sequence[float], sizes: Sequence[int]) -> int:
    ends = itertools.accumulate(sizes)
    return sum(not any(values[end - size : end]) for size, end in zip(sizes, ends, strict=True))


def _advantages(values: Sequence[float]) -> dict[str, object]:
    return {
        "advantage_mean": statistics.fmean(values),
        "advantage_std": statistics.pstdev(values),
        "advantage_min": min(values),
        "advantage_max": max(values),
    }


def trained_age(choice: steps.Choice, candidate: steps.Candidate) -> int:
    """Return the age in steps of a group's oldest token that is in the loss."""
    return choice.step - 1 - max(candidate.min_step, choice.oldest_trained_step)


def _summary(
    choice: steps.Choice, candidates: Sequence[steps.Candidate], members: Sequence[_Member]
) -> dict[str, object]:
    batch_index = choice.step - 1
    rewards = [member.row.raw_reward for member in members]
    lengths = [len(member.version_steps) for member in members]
    ages = [trained_age(choice, candidate) for candidate in candidates]
    token_ages = sum(
        batch_index * len(member.version_steps) - int(blocks.ints(member.version_steps).sum()) for member in members
    )
    return {
        "groups": len(candidates),
        "rows": len(members),
        "short_groups": sum(candidate.num_failures > 0 for candidate in candidates),
        "reward_mean": statistics.fmean(rewards),
        "reward_std": statistics.pstdev(rewards),
        **_sampled(choice.left_out, rewards),
        "shaped_mean": statistics.fmean(member.shaped for member in members),
        "success": statistics.fmean(reward > 0 for reward in rewards),
        "rewards": _part_means(members),
        "staleness": {str(age): count for age, count in sorted(collections.Counter(ages).items())},
        "staleness_mean": statistics.fmean(ages),
        "oldest_trained_step": choice.oldest_trained_step,
        "tokens_too_old": sum(
            int((blocks.ints(member.version_steps) < choice.oldest_trained_step).sum()) for member in members
        ),
        "staleness_token_mean": token_ages / sum(lengths),
        "staleness_inflight_mean": statistics.fmean(c.finished_step - c.min_step for c in candidates),
        "staleness_queue_mean": statistics.fmean(batch_index - c.finished_step for c in candidates),
        "mixed_version_trajectories": sum(len(submission.sampling_versions(member.row)) > 1 for member in members),
        "tokens": sum(lengths),
        "response_tokens_mean": statistics.fmean(lengths),
        "response_tokens_max": max(lengths),
        **_lengths_by_success(members),
        "truncated_ratio": statistics.fmean(member.row.truncated for member in members),
        "verify_s": sum(candidate.verify_s for candidate in candidates),
        "generate": [[c.generate_started_at, c.generate_finished_at] for c in candidates],
    }


def _sampled(left_out: steps.Rewards, trained: Sequence[float]) -> dict[str, object]:
    """Return mean and standard deviation over all answers that were graded, also those that a filter left out."""
    count = left_out.num_rows + len(trained)
    mean = (left_out.total + math.fsum(trained)) / count
    squares = (left_out.total_squares + math.fsum(reward**2 for reward in trained)) / count
    return {
        "left_out_rows": left_out.num_rows,
        "sampled_reward_mean": mean,
        "sampled_reward_std": math.sqrt(max(0.0, squares - mean**2)),
    }


def _actor(
    candidates: Sequence[steps.Candidate], members: Sequence[_Member], algorithm: AlgorithmSpec
) -> dict[str, object]:
    responses = [
        oat_metrics.Response(
            graded=member.row.raw_reward,
            formatted=member.row.verdict.formatted,
            truncated=member.row.truncated,
            num_tokens=len(member.version_steps),
            num_chars=member.row.output_chars,
        )
        for member in members
    ]
    return dict(
        oat_metrics.metrics(
            responses,
            zero_truncated=algorithm.zero_truncated,
            generate_s=[c.generate_finished_at - c.generate_started_at for c in candidates],
            verify_s=[c.verify_s for c in candidates],
        )
    )


def _lengths_by_success(members: Sequence[_Member]) -> dict[str, float]:
    """Return the mean lengths of rows with and without success; a mean over no rows is left out."""
    lengths: dict[str, list[int]] = {}
    for member in members:
        name = "response_tokens_correct" if member.row.raw_reward > 0 else "response_tokens_incorrect"
        lengths.setdefault(name, []).append(len(member.version_steps))
    return {name: statistics.fmean(values) for name, values in lengths.items()}


def _part_means(members: Sequence[_Member]) -> dict[str, float]:
    parts: dict[str, list[float]] = {}
    for member in members:
        for name, value in member.row.verdict.parts.items():
            parts.setdefault(name, []).append(value)
    return {name: statistics.fmean(values) for name, values in sorted(parts.items())}
