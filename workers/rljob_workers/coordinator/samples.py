"""From the groups of a step to its rows with advantages, and to the numbers that the step's history line reports. Pure.

Rows stand in (lease order, sample index) order, never in order of arrival.
"""

import collections
import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from rljob_api import codec, roles, types
from rljob_workers.coordinator import advantage, intake, shaping
from rljob_workers.coordinator.transitions import batches


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """A step before packing. `summary` becomes part of the step's history line."""

    group_ids: tuple[types.GroupId, ...]
    samples: tuple[types.TrainSample, ...]
    summary: dict[str, object]
    zero_advantage_groups: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    candidate: batches.Candidate
    row: types.Trajectory
    shaped: float
    version_steps: types.Ints


def assemble(choice: batches.Choice, config: roles.AlgorithmConfig) -> Assembled:
    """Return rows and summary of a chosen batch, whose candidates must be set. Batch index V is `choice.step` - 1."""
    assert choice.candidates is not None, "a choice without candidates cannot be assembled"
    ordered = sorted(choice.candidates, key=lambda candidate: candidate.lease_order)
    groups = [_members(candidate, choice.version_steps, config.rewards) for candidate in ordered]
    sizes = [len(members) for members in groups]
    members = [member for group in groups for member in group]
    values = advantage.normalize(config.normalize_reward, [member.shaped for member in members], sizes)
    samples = tuple(
        _sample(member, value, index, config.rewards)
        for index, (member, value) in enumerate(zip(members, values, strict=True))
    )
    zero = _zero_groups(values, sizes)
    return Assembled(
        group_ids=tuple(candidate.group_id for candidate in ordered),
        samples=samples,
        summary=_summary(choice.step - 1, ordered, members, zero),
        zero_advantage_groups=zero,
    )


def _members(
    candidate: batches.Candidate, version_steps: Mapping[int, int], config: roles.RewardShapingConfig
) -> list[_Member]:
    group = codec.decode_group(candidate.payload)
    return [
        _Member(
            candidate=candidate,
            row=row,
            shaped=shaping.shape(config, reward=row.reward, truncated=row.truncated, num_tokens=row.num_sampled),
            version_steps=types.ints(version_steps[v] for v in row.versions if v != types.NO_VERSION),
        )
        for row in sorted(group.trajectories, key=lambda row: row.sample_index)
    ]


def _sample(member: _Member, value: float, index: int, config: roles.RewardShapingConfig) -> types.TrainSample:
    row = member.row
    return types.TrainSample(
        group_id=member.candidate.group_id,
        sample_index=row.sample_index,
        row=index,
        tokens=row.tokens,
        loss_mask=row.loss_mask,
        logprobs=row.logprobs,
        version_steps=member.version_steps,
        advantages=types.floats([value] * len(member.version_steps)),
        raw_reward=row.raw_reward,
        shaped_reward=member.shaped,
        truncated=row.truncated,
        masked=config.mask_truncated and row.truncated,
    )


def _zero_groups(values: Sequence[float], sizes: Sequence[int]) -> int:
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return sum(not any(values[start : start + size]) for start, size in zip(starts, sizes, strict=True))


def _summary(
    batch_index: int, candidates: Sequence[batches.Candidate], members: Sequence[_Member], zero: int
) -> dict[str, object]:
    rewards = [member.row.raw_reward for member in members]
    lengths = [len(member.version_steps) for member in members]
    ages = [batch_index - candidate.min_step for candidate in candidates]
    token_ages = sum(batch_index - step for member in members for step in member.version_steps)
    return {
        "groups": len(candidates),
        "rows": len(members),
        "short_groups": sum(candidate.num_failures > 0 for candidate in candidates),
        "zero_advantage_groups": zero,
        "reward_mean": statistics.fmean(rewards),
        "reward_std": statistics.pstdev(rewards),
        "shaped_mean": statistics.fmean(member.shaped for member in members),
        "success": statistics.fmean(reward > 0 for reward in rewards),
        "rewards": _part_means(members),
        "staleness": {str(age): count for age, count in sorted(collections.Counter(ages).items())},
        "staleness_mean": statistics.fmean(ages),
        "staleness_token_mean": token_ages / sum(lengths),
        "staleness_inflight_mean": statistics.fmean(c.finished_step - c.min_step for c in candidates),
        "staleness_queue_mean": statistics.fmean(batch_index - c.finished_step for c in candidates),
        "mixed_version_trajectories": sum(len(intake.sampling_versions(member.row)) > 1 for member in members),
        "tokens": sum(lengths),
        "response_tokens_mean": statistics.fmean(lengths),
        "response_tokens_max": max(lengths),
        "truncated_ratio": statistics.fmean(member.row.truncated for member in members),
        "verify_s": sum(candidate.verify_s for candidate in candidates),
        "generate": [[c.generate_started_at, c.generate_finished_at] for c in candidates],
    }


def _part_means(members: Sequence[_Member]) -> dict[str, float]:
    parts: dict[str, list[float]] = {}
    for member in members:
        for name, value in member.row.verdict.parts.items():
            parts.setdefault(name, []).append(value)
    return {name: statistics.fmean(values) for name, values in sorted(parts.items())}
