"""Rows 11 to 15, 17 and 18: rewards and advantages."""

from collections.abc import Iterator

from rljob_api import effective
from rljob_api.manifest.algorithm import NormalizeSpec
from rljob_api.manifest.base import number
from rljob_api.manifest.job import JobSpec
from rljob_api.messages import ignored, refuse

GAMMA_ESTIMATORS = ("ppo", "reinforcepp", "reinforceppBaseline")
SINGLE_TURN_WORKFLOWS = ("rlvr", "math_code_single_step")


def group_of_one(spec: JobSpec) -> Iterator[str]:
    """Row 11."""
    algorithm = spec.algorithm
    if algorithm.group_size != 1:
        return
    if effective.normalize_reward(spec).mean == "group":
        who = (
            "normalizeReward.mean group"
            if algorithm.normalize_reward
            else f"advantageEstimator {algorithm.advantage_estimator}"
        )
        yield refuse("algorithm.groupSize", 1, f"{who} compares samples within a group and needs at least 2")
    if spec.data.filter_groups.enabled:
        yield refuse(
            "data.filterGroups.enabled", True, "groupSize is 1: a group of one has no spread and all are rejected"
        )


def _normalizations(spec: JobSpec) -> Iterator[tuple[str, NormalizeSpec]]:
    blocks = (
        ("algorithm.normalizeReward", spec.algorithm.normalize_reward),
        ("algorithm.normalizeAdvantage", spec.algorithm.normalize_advantage),
    )
    yield from ((path, block) for path, block in blocks if block is not None)


def normalisation_that_ignores(spec: JobSpec) -> Iterator[str]:
    """Row 12."""
    for path, block in _normalizations(spec):
        if block.leave_one_out and block.mean == "none":
            yield ignored(f"{path}.leaveOneOut", True, "mean is 'none'")
        if block.std != "none":
            continue
        for key, value in (("unbiased", block.unbiased), ("eps", block.eps), ("stdCenter", block.std_center)):
            if value is not None:
                yield ignored(f"{path}.{key}", value, "std is 'none'")


def rewards_shaped_twice(spec: JobSpec) -> Iterator[str]:
    """Row 13; rows with several rewards are known only when a custom workflow returns them, and refused there."""
    if not effective.shapes_rewards_itself(spec):
        return
    rewards = spec.algorithm.rewards
    legacy = effective.is_legacy_multi_turn(spec)
    option = "layout is 'legacy'" if legacy else "shaping is 'signed'"
    shaped = f"workflow.config.{option}, which shapes rewards itself (rewardScale, rewardBias)"
    if number(rewards.scale) != 1:
        yield ignored("algorithm.rewards.scale", rewards.scale, shaped)
    if number(rewards.bias) != 0:
        yield ignored("algorithm.rewards.bias", rewards.bias, shaped)
    for key, value in (("clip", rewards.clip), ("overlong", rewards.overlong)):
        if value is not None:
            yield ignored(f"algorithm.rewards.{key}", value, shaped)


def gae_without_use(spec: JobSpec) -> Iterator[str]:
    """Row 14."""
    gae, estimator = spec.algorithm.gae, spec.algorithm.advantage_estimator
    because = f"advantageEstimator {estimator} does not discount over time"
    if estimator != "ppo":
        for key, value in (("lambda", gae.lambda_), ("bootstrapTruncated", gae.bootstrap_truncated)):
            if value is not None:
                yield ignored(f"algorithm.gae.{key}", value, f"advantageEstimator {estimator} has no critic")
    if estimator not in GAMMA_ESTIMATORS:
        for key, written in (("gamma", gae.gamma), ("unit", gae.unit)):
            if written is not None:
                yield ignored(f"algorithm.gae.{key}", written, because)
    if gae.unit == "turn" and spec.workflow.type in SINGLE_TURN_WORKFLOWS:
        yield refuse("algorithm.gae.unit", "turn", f"workflow.type {spec.workflow.type} has no turns: use token")


def critic_and_estimator(spec: JobSpec) -> Iterator[str]:
    """Row 15."""
    algorithm = spec.algorithm
    if algorithm.advantage_estimator == "ppo" and algorithm.critic is None:
        yield refuse(
            "algorithm.advantageEstimator", "ppo", "spec.algorithm.critic is not set: add critic: {}, or use grpo"
        )
    if algorithm.advantage_estimator != "ppo" and algorithm.critic is not None:
        yield ignored(
            "algorithm.critic", algorithm.critic, f"advantageEstimator {algorithm.advantage_estimator} has no critic"
        )


def truncated_is_terminal_and_not(spec: JobSpec) -> Iterator[str]:
    """Row 17."""
    if spec.algorithm.zero_truncated and spec.algorithm.gae.bootstrap_truncated:
        yield refuse(
            "algorithm.gae.bootstrapTruncated",
            True,
            "zeroTruncated is true: a cut answer cannot both end and go on; use false",
        )


def overlong_never_acts(spec: JobSpec) -> Iterator[str]:
    """Row 18."""
    overlong = spec.algorithm.rewards.overlong
    if overlong is None:
        return
    start = overlong.max_tokens - overlong.tail_tokens
    if start < 0:
        yield refuse(
            "algorithm.rewards.overlong.tailTokens",
            overlong.tail_tokens,
            f"it is above maxTokens {overlong.max_tokens}",
        )
    elif spec.rollout.sampling.max_tokens <= start:
        yield refuse(
            "rollout.sampling.maxTokens",
            spec.rollout.sampling.max_tokens,
            f"the overlong penalty begins only above {start} tokens and would never act:"
            " lower algorithm.rewards.overlong.maxTokens",
        )
