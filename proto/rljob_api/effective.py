"""Derived defaults: what an unset field means beside the others. Pure functions of the spec, one per field.

An unset field stays unset in the manifest and in the CRD, so that "written" and "default" stay apart; every reader of a
value that depends on others asks here.
"""

import math

from rljob_api import roles
from rljob_api.manifest.algorithm import NormalizeSpec
from rljob_api.manifest.base import number, optional_number
from rljob_api.manifest.job import JobSpec
from rljob_api.manifest.loss import CorrectionSpec, RejectSpec

DEFAULT_CLIP = 0.2
DEFAULT_TAU_POS, DEFAULT_TAU_NEG = 1.0, 1.05
ALL_TOKENS = 100_000_000
DEFAULT_REWARD_CLIP = 20.0
DEFAULT_TRUNCATE_HIGH = 2.0
FILTER_STARVATION_STEPS = 10
MODEL_LEN_MULTIPLE = 16
# Of multi_turn_math: its default number of turns, and room for one feedback text in any tokenizer.
DEFAULT_NUM_TURNS = 5
FEEDBACK_TOKENS = 128

# Algorithms reference 5.1: what each estimator does to shaped rewards, over rows.
REWARD_PRESETS: dict[str, roles.NormalizeConfig] = {
    "grpo": roles.NormalizeConfig(mean="group", std="group"),
    "drgrpo": roles.NormalizeConfig(mean="group", std="none"),
    "rloo": roles.NormalizeConfig(mean="group", std="none", leave_one_out=True),
    "liteppo": roles.NormalizeConfig(mean="group", std="batch", std_center="own"),
    "reinforcepp": roles.NormalizeConfig(mean="none", std="none"),
    "reinforceppBaseline": roles.NormalizeConfig(mean="group", std="none"),
    "ppo": roles.NormalizeConfig(mean="none", std="none"),
}


# 5.1 again: those that normalise over tokens as well.
WHITENING_ESTIMATORS = ("reinforcepp", "reinforceppBaseline", "ppo")


def normalize_reward(spec: JobSpec) -> roles.NormalizeConfig:
    """Return the block that was written, else the estimator's preset."""
    written = spec.algorithm.normalize_reward
    return REWARD_PRESETS[spec.algorithm.advantage_estimator] if written is None else _normalize(written)


def normalize_advantage(spec: JobSpec) -> roles.NormalizeConfig | None:
    """Return the block that was written, else the estimator's preset; None where nothing would change."""
    written = spec.algorithm.normalize_advantage
    if written is not None:
        chosen = _normalize(written)
        return None if chosen.mean == chosen.std == "none" else chosen
    whitened = spec.algorithm.advantage_estimator in WHITENING_ESTIMATORS
    return roles.NormalizeConfig(mean="batch", std="batch") if whitened else None


def returns(spec: JobSpec) -> roles.ReturnsConfig | None:
    """Return what makes advantages of tokens from rewards of rows; None where every token gets its row's value."""
    gamma, normalize = optional_number(spec.algorithm.gae.gamma), normalize_advantage(spec)
    estimator = spec.algorithm.advantage_estimator
    if estimator not in WHITENING_ESTIMATORS and normalize is None and not kl_in_reward(spec):
        return None
    return roles.ReturnsConfig(
        gamma=1.0 if gamma is None else gamma,
        decay=decay(spec),
        unit=spec.algorithm.gae.unit or "token",
        bootstrap_truncated=bootstrap_truncated(spec),
        normalize=normalize,
    )


def decay(spec: JobSpec) -> roles.DecayConfig:
    """Return lambda: a number or a rule that looks at a row's length; default 1."""
    written = spec.algorithm.gae.lambda_
    if written is None:
        return roles.DecayConfig()
    name, _, argument = written.partition("{")
    if argument:
        return roles.DecayConfig.model_validate({"kind": name, "value": number(argument.removesuffix("}"))})
    return roles.DecayConfig(value=number(written))


def bootstrap_truncated(spec: JobSpec) -> bool:
    """Return whether a cut answer goes on with the critic's value: by default yes, unless it counts as 0."""
    written, algorithm = spec.algorithm.gae.bootstrap_truncated, spec.algorithm
    has_critic = algorithm.advantage_estimator == "ppo"
    return has_critic and (not algorithm.zero_truncated if written is None else written)


def critic(spec: JobSpec) -> roles.CriticConfig | None:
    """Return the value model's settings; None for estimators without one."""
    written = spec.algorithm.critic
    if written is None:
        return None
    return roles.CriticConfig(
        learning_rate=number(written.learning_rate),
        value_clip=number(written.value_clip),
        vf_coef=number(written.vf_coef),
        warmup_steps=written.warmup_steps,
    )


def _normalize(block: NormalizeSpec) -> roles.NormalizeConfig:
    return roles.NormalizeConfig(
        mean=block.mean,
        std=block.std,
        leave_one_out=block.leave_one_out,
        unbiased=block.unbiased is not False,
        eps=1e-6 if block.eps is None else number(block.eps),
        std_center=block.std_center or "subtracted",
    )


def filter_enabled(spec: JobSpec) -> bool:
    """Return whether zero-spread groups are rejected: by default yes, unless a group is one sample."""
    written = spec.data.filter_groups.enabled
    return spec.algorithm.group_size > 1 if written is None else written


def filter_bounds(spec: JobSpec) -> tuple[float | None, float | None]:
    """Return the bounds on a group's mean raw reward: those of the filter, else those of signed single-step agents."""
    groups = spec.data.filter_groups
    lower, upper = success_rate_bounds(spec)
    return (
        lower if groups.lower is None else number(groups.lower),
        upper if groups.upper is None else number(groups.upper),
    )


def success_rate_bounds(spec: JobSpec) -> tuple[float | None, float | None]:
    """Return successRateLowerBound and successRateUpperBound of workflow.config where it shapes by sign; raw rewards
    are successes there.
    """
    if spec.workflow.type != "math_code_single_step" or not shapes_rewards_itself(spec):
        return None, None
    written = [spec.workflow.config.get(f"successRate{end}Bound") for end in ("Lower", "Upper")]
    lower, upper = (float(value) if isinstance(value, int | float) else None for value in written)
    return lower, upper


def max_extra_groups(spec: JobSpec) -> int:
    """Return how many groups of one step may be rejected before the run counts as starved; default 10 x B."""
    return spec.data.filter_groups.max_extra_groups or FILTER_STARVATION_STEPS * spec.algorithm.prompts_per_step


def reward_clip(spec: JobSpec) -> float:
    """Return the bound on shaped rewards: 20; none for the legacy workflow, which shapes its own rewards."""
    written = optional_number(spec.algorithm.rewards.clip)
    if written is not None:
        return written
    return math.inf if shapes_rewards_itself(spec) else DEFAULT_REWARD_CLIP


def is_legacy_multi_turn(spec: JobSpec) -> bool:
    """Return whether each turn is a row of its own with rewards shaped by the workflow."""
    return spec.workflow.type == "multi_turn_math" and spec.workflow.config.get("layout") == "legacy"


def shapes_rewards_itself(spec: JobSpec) -> bool:
    """Return whether the workflow maps success to rewards, so that the pipeline's affine step must be the identity."""
    signed = spec.workflow.config.get("shaping") == "signed"
    return is_legacy_multi_turn(spec) or (spec.workflow.type == "math_code_single_step" and signed)


def top_k(written: int) -> int:
    """Return the number of candidate tokens, 0 for all. Ported configs say all by 1e8, more than any vocabulary has."""
    return 0 if written >= ALL_TOKENS else written


def inflight_cap(spec: JobSpec) -> int:
    """Return (maxOffPolicySteps + 1) x promptsPerStep, beyond which no group could be trained in time."""
    return (spec.async_.max_off_policy_steps + 1) * spec.algorithm.prompts_per_step


def max_inflight_groups(spec: JobSpec) -> int:
    """Return the written bound, else the cap."""
    return spec.async_.max_inflight_groups or inflight_cap(spec)


def in_flight_weight_updates(spec: JobSpec) -> bool:
    """Return whether weights change inside a generation: by default yes, unless training is synchronous."""
    written = spec.async_.in_flight_weight_updates
    return spec.async_.max_off_policy_steps > 0 if written is None else written


def clip_low(spec: JobSpec) -> float:
    """Return the lower clip width; default 0.2."""
    written = optional_number(spec.algorithm.loss.clip_low)
    return DEFAULT_CLIP if written is None else written


def clip_high(spec: JobSpec) -> float:
    """Return the upper clip width; default clipLow."""
    written = optional_number(spec.algorithm.loss.clip_high)
    return clip_low(spec) if written is None else written


def tau_pos(spec: JobSpec) -> float:
    """Return sapo's temperature for positive advantages; default 1.0."""
    written = optional_number(spec.algorithm.loss.tau_pos)
    return DEFAULT_TAU_POS if written is None else written


def tau_neg(spec: JobSpec) -> float:
    """Return sapo's temperature for other advantages; default 1.05."""
    written = optional_number(spec.algorithm.loss.tau_neg)
    return DEFAULT_TAU_NEG if written is None else written


def proximal(spec: JobSpec) -> str:
    """Return the policy that the clip band is centred on; default recompute."""
    return spec.algorithm.loss.proximal or "recompute"


def aggregation(spec: JobSpec) -> str:
    """Return how token losses are averaged: tokenMean, with gspo sequenceMean."""
    return spec.algorithm.loss.aggregation or ("sequenceMean" if spec.algorithm.loss.type == "gspo" else "tokenMean")


def constant_denominator(spec: JobSpec) -> float:
    """Return the denominator of aggregation constant: default rollout.sampling.maxTokens."""
    written = optional_number(spec.algorithm.loss.constant_denominator)
    return float(spec.rollout.sampling.max_tokens) if written is None else written


def kl_placement(spec: JobSpec) -> str:
    """Return where the KL term goes; default loss."""
    return spec.algorithm.loss.kl_placement or "loss"


def kl_estimator(spec: JobSpec) -> str:
    """Return the KL estimator: k3 in the loss, k1 in the reward."""
    return spec.algorithm.loss.kl_estimator or ("k1" if kl_placement(spec) == "reward" else "k3")


def kl_in_reward(spec: JobSpec) -> bool:
    """Return whether rewards of tokens hold a KL term."""
    return number(spec.algorithm.loss.kl_coef) > 0 and kl_placement(spec) == "reward"


def correction(spec: JobSpec) -> roles.CorrectionConfig | None:
    """Return the rollout correction: token, truncate, ratio, high 2; None with `behaviour`, where the weight is 1."""
    written = spec.algorithm.loss.rollout_correction
    if proximal(spec) == "behaviour":
        return None
    return roles.CorrectionConfig() if written is None else _correction(written)


def train_zero_advantage(spec: JobSpec) -> bool:
    """Return whether rows without advantage are computed: an entropy or KL term or a statistic needs them."""
    loss = spec.algorithm.loss
    return number(loss.entropy_coef) != 0 or number(loss.kl_coef) > 0 or train_masked(spec)


def train_masked(spec: JobSpec) -> bool:
    """Return whether rows of maskTruncated are computed: statistics over tokens, and a critic, take all that were
    sampled.
    """
    written = spec.algorithm.loss.rollout_correction
    normalized = written is not None and written.batch_normalize
    return normalized or spec.algorithm.loss.m2_threshold is not None or returns(spec) is not None


def _correction(block: CorrectionSpec) -> roles.CorrectionConfig:
    high = optional_number(block.high)
    return roles.CorrectionConfig(
        level=block.level,
        mode=block.mode,
        metric=block.metric,
        agg=block.agg,
        low=optional_number(block.low),
        high=DEFAULT_TRUNCATE_HIGH if high is None and block.mode == "truncate" else high,
        weighting=block.weighting or "ratio",
        batch_normalize=block.batch_normalize,
        reject=None if block.reject is None else _reject(block.reject),
    )


def _reject(block: RejectSpec) -> roles.RejectConfig:
    return roles.RejectConfig(
        level=block.level,
        metric=block.metric,
        agg=block.agg,
        low=optional_number(block.low),
        high=optional_number(block.high),
    )


def world_size(spec: JobSpec) -> int:
    """Return the number of trainer processes, which is the data-parallel size."""
    return spec.trainer.nodes * spec.trainer.processes_per_node


def longest_prompt(spec: JobSpec) -> int:
    """Return the longest training prompt, tokens."""
    return max(source.max_prompt_tokens for source in spec.data.train)


def longest_row(spec: JobSpec) -> int:
    """Return the longest prompt + answer of training, tokens."""
    return longest_prompt(spec) + spec.rollout.sampling.max_tokens


def evaluation_max_tokens(spec: JobSpec) -> int:
    """Return the longest evaluation answer, tokens; default as in training."""
    return spec.evaluation.sampling.max_tokens or spec.rollout.sampling.max_tokens


def longest_request(spec: JobSpec) -> int:
    """Return the longest prompt + answer of training and evaluation, tokens."""
    suites = (suite.max_prompt_tokens + evaluation_max_tokens(spec) for suite in spec.evaluation.suites)
    return max(longest_row(spec), *suites, 0) + later_turns(spec)


def later_turns(spec: JobSpec) -> int:
    """Return what the turns after the first may add to a request, tokens; 0 for workflows of one turn."""
    if spec.workflow.type != "multi_turn_math":
        return 0
    written = spec.workflow.config.get("numTurns")
    turns = written if isinstance(written, int) else DEFAULT_NUM_TURNS
    answer = max(spec.rollout.sampling.max_tokens, evaluation_max_tokens(spec))
    return max(0, turns - 1) * (answer + FEEDBACK_TOKENS)


def max_model_len(spec: JobSpec) -> int:
    """Return the written context length, else the longest request rounded up to whole cache blocks, tokens."""
    blocks = -(-longest_request(spec) // MODEL_LEN_MULTIPLE)
    return spec.rollout.engine.max_model_len or blocks * MODEL_LEN_MULTIPLE
