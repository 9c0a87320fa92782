"""Legal but doubtful combinations. A warning never stops a run."""

from collections.abc import Iterator

from rljob_api import effective
from rljob_api.job import JobSpec
from rljob_api.rules.words import refuse

LONG_ANSWER_TOKENS = 1024
GSPO_USUAL_CLIP = 0.01


def shared_baseline_of_turns(spec: JobSpec) -> Iterator[str]:
    """Rows of different turns share a baseline."""
    if effective.is_legacy_multi_turn(spec) and effective.normalize_reward(spec).mean == "group":
        yield refuse(
            "workflow.config.layout", "legacy", "rows of different turns share one baseline under a group mean"
        )


def uncapped_weight(spec: JobSpec) -> Iterator[str]:
    """An old sample may weigh anything."""
    block, eta = spec.algorithm.loss.rollout_correction, spec.async_.max_off_policy_steps
    if block is None or eta <= 1:
        return
    for key, value in (("mode", block.mode), ("weighting", block.weighting)):
        if value == "none":
            yield refuse(f"algorithm.loss.rolloutCorrection.{key}", "none", f"samples may be {eta} steps old")


def product_bounds(spec: JobSpec) -> Iterator[str]:
    """Products of ratios grow with length."""
    block, longest = spec.algorithm.loss.rollout_correction, spec.rollout.sampling.max_tokens
    if block is not None and block.agg == "sum" and longest > LONG_ANSWER_TOKENS:
        yield refuse(
            "algorithm.loss.rolloutCorrection.agg",
            "sum",
            f"products over up to {longest} tokens punish long answers; watch the masked share",
        )


def wide_gspo_band(spec: JobSpec) -> Iterator[str]:
    """Sequence ratios are geometric means and stay close to 1."""
    if spec.algorithm.loss.type == "gspo" and effective.clip_low(spec) > GSPO_USUAL_CLIP:
        yield refuse("algorithm.loss.clipLow", str(effective.clip_low(spec)), 'gspo is published with "3e-4"')


def template_without_its_grader(spec: JobSpec) -> Iterator[str]:
    """The prompt asks for one form of answer and the grader for another."""
    graders = {"r1": ("boxed",), "qwen_math": ("answer_tag",), "no": ("answer_tag",)}
    for reward in spec.verifier.rewards:
        if reward.type in graders.get(spec.data.template, ()):
            yield refuse(
                "data.template",
                spec.data.template,
                f"reward {reward.name} is of type {reward.type}, which it does not ask for",
            )


WARNINGS = (
    shared_baseline_of_turns,
    uncapped_weight,
    product_bounds,
    wide_gspo_band,
    template_without_its_grader,
)
