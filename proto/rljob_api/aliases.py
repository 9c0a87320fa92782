"""What other systems call our fields, so that a refusal of an unknown key can say where it went.

The names are those of `names_elsewhere`, by their last part, compared without case, dashes and underscores. Beside them
stand further words, and which of several meanings a word has.
"""

import re

from rljob_api import names_elsewhere

# Words of other versions, of Oat and of recipes (algorithms reference, section 14), and the usual meaning of a name
# that has several. Right: our path below `spec`.
ALIASES: dict[str, str] = {
    "num_samples": "algorithm.groupSize",
    "rollout_n": "algorithm.groupSize",
    "samples_per_prompt": "algorithm.groupSize",
    "prompts_per_batch": "algorithm.promptsPerStep",
    "max_off_policy_threshold": "async.maxOffPolicySteps",
    "max_off_policy_strategy": "async.onStale",
    "partial_rollout_enable": "async.inFlightWeightUpdates",
    "max_inflight": "async.maxInflightGroups",
    "parameter_sync_step": "weightSync.everySteps",
    "filter_groups": "data.filterGroups",
    "filter_zero_advantages": "data.filterGroups.enabled",
    "dynamic_filtering_enable": "data.filterGroups.enabled",
    "dynamic_filter_fn": "data.filterGroups.predicate",
    "should_accept_fn": "data.filterGroups.predicate",
    "filter_reward_lb": "data.filterGroups.lower",
    "filter_reward_ub": "data.filterGroups.upper",
    "dynamic_filtering_range": "data.filterGroups.lower",
    "success_rate_lb": "data.filterGroups.lower",
    "success_rate_ub": "data.filterGroups.upper",
    "success_rate_lower_bound": "data.filterGroups.lower",
    "success_rate_upper_bound": "data.filterGroups.upper",
    "reward_scale": "algorithm.rewards.scale",
    "overlong_buffer_cfg": "algorithm.rewards.overlong",
    "overlong_reward_penalty": "algorithm.rewards.overlong",
    "length_penalty": "algorithm.rewards.overlong",
    "stop_properly_penalty_coef": "algorithm.zeroTruncated",
    "mask_too_long": "algorithm.maskTruncated",
    "ignore_no_eos": "algorithm.maskTruncated",
    "estimator": "algorithm.advantageEstimator",
    "algo_type": "algorithm.advantageEstimator",
    "no_std_norm": "algorithm.normalizeReward.std",
    "reward_norm": "algorithm.normalizeReward",
    "mean_level": "algorithm.normalizeReward.mean",
    "std_level": "algorithm.normalizeReward.std",
    "adv_norm": "algorithm.normalizeAdvantage",
    "gae_timestep_unit": "algorithm.gae.unit",
    "loss_type": "algorithm.loss.type",
    "use_sapo_loss": "algorithm.loss.type",
    "use_cispo_loss": "algorithm.loss.type",
    "clip_ratio": "algorithm.loss.clipLow",
    "dppo_mask_low": "algorithm.loss.clipLow",
    "dppo_mask_high": "algorithm.loss.clipHigh",
    "eps_clip": "algorithm.loss.clipLow",
    "eps_clip_low_high": "algorithm.loss.clipLow",
    "cliprange": "algorithm.loss.clipLow",
    "delta": "algorithm.loss.dualClip",
    "sapo_tau_pos": "algorithm.loss.tauPos",
    "sapo_tau_neg": "algorithm.loss.tauNeg",
    "recompute_logprob": "algorithm.loss.proximal",
    "prox_logp_method": "algorithm.loss.proximal",
    "rollout_is": "algorithm.loss.rolloutCorrection",
    "rollout_rs": "algorithm.loss.rolloutCorrection",
    "rejection_sampling": "algorithm.loss.rolloutCorrection",
    "is_correction_enable": "algorithm.loss.rolloutCorrection",
    "is_correction_type": "algorithm.loss.rolloutCorrection.mode",
    "vllm_importance_sampling_correction": "algorithm.loss.rolloutCorrection",
    "rollout_rs_threshold": "algorithm.loss.rolloutCorrection.high",
    "is_correction_threshold": "algorithm.loss.rolloutCorrection.high",
    "vllm_importance_sampling_clip_min": "algorithm.loss.rolloutCorrection.low",
    "vllm_importance_sampling_clip_max": "algorithm.loss.rolloutCorrection.high",
    "loss_scale_factor": "algorithm.loss.constantDenominator",
    "kl_ctrl": "algorithm.loss.klCoef",
    "kl_penalty": "algorithm.loss.klEstimator",
    "value_eps_clip": "algorithm.critic.valueClip",
    "freezing_steps": "algorithm.critic.warmupSteps",
    "max_tokens_per_gpu": "trainer.maxTokensPerMicroBatch",
    "lr": "trainer.optimizer.learningRate",
    "drop_incomplete_group": "failurePolicy.minGroupFraction",
    "response_length": "rollout.sampling.maxTokens",
    "num_workers": "rollout.replicas",
    "max_train_steps": "maxSteps",
    "total_train_steps": "maxSteps",
    "num_train_steps": "maxSteps",
    "model_path": "model.name",
    "prompt_template": "data.template",
    "eval_freq": "evaluation.everySteps",
    "zero_optimization": "trainer.deepspeed.zeroStage",
    "reward_fn": "verifier.rewards",
    "reward_funcs": "verifier.rewards",
    "agent": "workflow",
}

# Values that name a recipe or another system's word for a value of ours: (our path, their value) -> the answer.
VALUE_HINTS: dict[tuple[str, str], str] = {
    (
        "spec.algorithm.loss.type",
        "grpo",
    ): "a recipe name: write spec.algorithm.advantageEstimator: grpo and leave loss.type ppo",
    ("spec.algorithm.loss.type", "drgrpo"): (
        "a recipe name: write spec.algorithm.advantageEstimator: drgrpo and spec.algorithm.loss.aggregation: constant"
    ),
    ("spec.algorithm.loss.type", "dapo"): (
        'a recipe name: write spec.algorithm.loss.clipHigh: "0.28", spec.data.filterGroups.enabled: true and'
        " spec.algorithm.rewards.overlong"
    ),
    ("spec.algorithm.advantageEstimator", "gae"): "ppo here: the estimator with a critic",
    ("spec.algorithm.advantageEstimator", "reinforce_plus_plus"): "reinforcepp here",
    ("spec.algorithm.advantageEstimator", "reinforce_plus_plus_baseline"): "reinforceppBaseline here",
    ("spec.algorithm.advantageEstimator", "dr_grpo"): "drgrpo here",
    ("spec.algorithm.loss.aggregation", "token-mean"): "tokenMean here",
    ("spec.algorithm.loss.aggregation", "seq-mean-token-mean"): "sequenceMean here",
    ("spec.algorithm.loss.aggregation", "seq-mean-token-sum-norm"): "constant here",
}


# Last parts that say nothing without the rest of their name.
_GENERAL = frozenset(
    (
        "dtype",
        "enable",
        "eps",
        "learningrate",
        "len",
        "metric",
        "mintokens",
        "offload",
        "stop",
        "stoptokenids",
        "temperature",
    )
)


def folded(key: str) -> str:
    """Return a key without case, dashes, dots and underscores."""
    return re.sub(r"[-_.]", "", key).lower()


def our_path(key: str) -> str | None:
    """Return our path for another system's key, or None."""
    return _FOLDED.get(folded(key))


def _by_last_part() -> dict[str, str]:
    """Return our path by the last part of a name elsewhere, where that has one meaning."""
    found: dict[str, set[str]] = {}
    for each in names_elsewhere.NAMES:
        found.setdefault(folded(each.name.rsplit(".", 1)[-1]), set()).add(each.path)
    return {key: paths.pop() for key, paths in found.items() if len(paths) == 1 and key not in _GENERAL}


_FOLDED = _by_last_part() | {folded(key): path for key, path in ALIASES.items()}
