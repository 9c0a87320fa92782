"""Makers of valid values: a test names only what it is about."""

from collections.abc import Sequence

from rljob_api import enums, types


def make_verdict(reward: float | None = 1.0, reason: enums.VerdictReason | None = None) -> types.Verdict:
    """Return a verdict; without a reason the one that fits the reward."""
    if reward is None:
        return types.Verdict(
            reward=None, reason=enums.VerdictReason.INFRA_FAILURE, outcome=enums.VerifyOutcome.INFRA_ERROR
        )
    right = reward > 0
    return types.Verdict(
        reward=reward,
        reason=reason or (enums.VerdictReason.OK if right else enums.VerdictReason.WRONG),
        outcome=enums.VerifyOutcome.PASS if right else enums.VerifyOutcome.FAIL,
    )


def make_trajectory(
    *,
    prompt: Sequence[int] = (5, 6, 7),
    completion: Sequence[int] = (8, 9),
    versions: Sequence[int] | int = 0,
    logprobs: Sequence[float] | float = -0.5,
    reward: float = 1.0,
    sample_index: int = 0,
    truncated: bool = False,
) -> types.Trajectory:
    """Return a single-turn row: prompt, then completion."""
    count, before = len(completion), len(prompt)
    version_row = [versions] * count if isinstance(versions, int) else list(versions)
    logprob_row = [logprobs] * count if isinstance(logprobs, float) else list(logprobs)
    return types.Trajectory(
        tokens=types.ints([*prompt, *completion]),
        loss_mask=types.mask([0] * before + [1] * count),
        logprobs=types.floats([0.0] * before + logprob_row),
        versions=types.ints([-1] * before + version_row),
        turn_ids=types.ints([-1] * before + [0] * count),
        truncated=truncated,
        reward=reward,
        raw_reward=reward,
        verdict=make_verdict(reward),
        sample_index=sample_index,
        stop_reason="length" if truncated else "stop",
    )


def make_group(
    *,
    lease_id: str = "lease",
    group_id: str = "group",
    attempt: int = 1,
    rewards: Sequence[float] = (1.0, 0.0),
    versions: Sequence[int] | int = 0,
    failures: Sequence[types.MemberFailure] = (),
) -> types.PromptGroup:
    """Return a group with one row per reward."""
    return types.PromptGroup(
        lease_id=types.LeaseId(lease_id),
        group_id=types.GroupId(group_id),
        attempt=attempt,
        trajectories=tuple(
            make_trajectory(reward=reward, sample_index=index, versions=versions)
            for index, reward in enumerate(rewards)
        ),
        failures=tuple(failures),
        generate_started_at=1.0,
        generate_finished_at=2.0,
        verify_s=0.1,
    )
