"""Legal but doubtful combinations. A warning never stops a run."""

from collections.abc import Iterator, Sequence

from rljob_api import effective, names, suites
from rljob_api.manifest.job import JobSpec
from rljob_api.manifest.verifier import PROGRAM_REWARDS, RewardSpec, runtime_class
from rljob_api.messages import refuse

LONG_ANSWER_TOKENS = 1024
GSPO_USUAL_CLIP = 0.01


def shared_baseline_of_turns(spec: JobSpec) -> Iterator[str]:
    """Rows of different turns share a baseline."""
    blocks = (effective.normalize_reward(spec), effective.normalize_advantage(spec))
    levels = {level for block in blocks if block is not None for level in (block.mean, block.std)}
    if effective.is_legacy_multi_turn(spec) and "group" in levels:
        yield refuse(
            "workflow.config.layout", "legacy", "rows of different turns share one baseline under a level of groups"
        )


def lone_feedback(spec: JobSpec) -> Iterator[str]:
    """A rendered user message in mid-conversation brings the default system prompt with it."""
    if effective.is_legacy_multi_turn(spec) and spec.workflow.config.get("legacyFeedback"):
        yield refuse(
            "workflow.config.legacyFeedback",
            "true",
            "it may put a second system prompt and BOS into mid-conversation; it is for repeats of published runs",
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
    yield from _unfit("data.template", spec.data.template, spec.verifier.rewards)
    for index, suite in enumerate(spec.evaluation.suites):
        if suite.template or suite.rewards:
            template, rewards = suites.template(spec, suite), suite.rewards or spec.verifier.rewards
            yield from _unfit(f"evaluation.suites[{index}].template", template, rewards)


def _unfit(path: str, template: str, rewards: Sequence[RewardSpec]) -> Iterator[str]:
    graders = {"r1": ("boxed",), "qwen_math": ("answer_tag",), "no": ("answer_tag",)}
    for reward in rewards:
        if reward.type in graders.get(template, ()):
            yield refuse(path, template, f"reward {reward.name} is of type {reward.type}, which it does not ask for")


def rounded_before_served(spec: JobSpec) -> Iterator[str]:
    """Updates smaller than the served format's step move the trainer and not the rollouts."""
    if spec.trainer.dtype != "float32":
        return
    if spec.model.dtype != "float32":
        yield refuse(
            "trainer.dtype",
            "float32",
            f"versions are published in spec.model.dtype {spec.model.dtype}: rollouts sample from rounded weights,"
            ' which swallows small updates; use "bfloat16", or spec.model.dtype "float32"',
        )
    elif spec.rollout.engine.dtype not in (None, "float32"):
        yield refuse(
            "rollout.engine.dtype",
            spec.rollout.engine.dtype,
            "the engine rounds the float32 weights that it is given, which swallows small updates; leave it out",
        )


def wider_than_trained(spec: JobSpec) -> Iterator[str]:
    """Twice the bytes for the same numbers."""
    if spec.model.dtype == "float32" and spec.trainer.dtype == "bfloat16":
        yield refuse(
            "model.dtype",
            "float32",
            "the weights of a trainer in bfloat16 are published, which are no finer for twice the bytes;"
            ' use "bfloat16", or spec.trainer.dtype "float32"',
        )


def scaled_in_a_cluster_only(spec: JobSpec) -> Iterator[str]:
    """On one machine there is nothing that scales."""
    scaling = spec.rollout.autoscaling
    if scaling is not None:
        yield refuse("rollout.autoscaling.provider", scaling.provider, "on one machine the replicas stay as they are")


def unconfined_programs(spec: JobSpec) -> Iterator[str]:
    """What the policy writes runs beside everything else that the verifier may reach."""
    programs = [reward.name for _, _, reward in suites.rewards(spec) if reward.type in PROGRAM_REWARDS]
    if programs and spec.verifier.isolation == "none":
        yield refuse(
            "verifier.isolation",
            "none",
            f"reward {programs[0]} runs what the policy wrote: only its time, memory, processes and output are limited",
        )


def served_in_a_cluster_only(spec: JobSpec) -> Iterator[str]:
    """A RuntimeClass is a pod's, and which ones a job may ask for is a setting of the operator's."""
    if runtime_class(spec.verifier.isolation):
        yield refuse(
            "verifier.isolation",
            spec.verifier.isolation,
            "it is for pods alone: rljob run refuses it, and a cluster takes it if its operator lists the RuntimeClass"
            " (jobs.runtimeClasses of the chart)",
        )


def groups_above_a_message(spec: JobSpec) -> Iterator[str]:
    """A group is handed in as one message."""
    tokens = spec.algorithm.group_size * effective.longest_row(spec)
    mib = tokens * names.GROUP_BYTES_PER_TOKEN >> 20
    if tokens * names.GROUP_BYTES_PER_TOKEN > names.MAX_BATCH_PART_BYTES:
        yield refuse(
            "algorithm.groupSize",
            spec.algorithm.group_size,
            f"groups of rows of up to {effective.longest_row(spec)} tokens may have {mib} MiB, and one above"
            f" {names.MAX_BATCH_PART_BYTES >> 20} MiB is not trained: it fails as TooLargeError",
        )


WARNINGS = (
    groups_above_a_message,
    shared_baseline_of_turns,
    lone_feedback,
    uncapped_weight,
    product_bounds,
    wide_gspo_band,
    template_without_its_grader,
    rounded_before_served,
    wider_than_trained,
    scaled_in_a_cluster_only,
    served_in_a_cluster_only,
    unconfined_programs,
)
