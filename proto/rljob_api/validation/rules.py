"""What a manifest may not combine, and what is doubtful: the rules of all sections, walked from the job down.

The rules themselves are methods of the sections that they speak of (`rljob_api.manifest`), those across sections of the
job's spec. They speak of values that were written: an unset field never breaks a rule by its default alone.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence

from pydantic import BaseModel

from rljob_api import enums, suites
from rljob_api.manifest import base
from rljob_api.manifest.base import CelRule, Section
from rljob_api.manifest.job import JobSpec
from rljob_api.manifest.rollout import KEY_VARIABLE
from rljob_api.manifest.verifier import PROGRAM_REWARDS, RewardSpec
from rljob_api.validation import fields, messages

UNUSED, DUPLICATE = "written value without effect", "duplicate key"
LONG_ANSWER_TOKENS = 1024
GSPO_USUAL_CLIP = 0.01


def problems(spec: JobSpec) -> list[str]:
    """Return a sentence for every broken rule, in the order of the manifest's sections."""
    return [sentence for _, sentence in broken(spec)]


def warnings(spec: JobSpec) -> list[str]:
    """Return a sentence for every legal but doubtful combination, wherever the job runs."""
    return [sentence for rule in WARNINGS for sentence in rule(spec)]


def one_machine_warnings(spec: JobSpec) -> list[str]:
    """Return a sentence for everything that is written for a cluster and does nothing on one machine."""
    return [sentence for rule in ONE_MACHINE_WARNINGS for sentence in rule(spec)]


# What a job in a cluster has to say of its storage, whatever else it says.
STORAGE_TYPE = (
    "say where ledger, checkpoints and model go: type Persistent with checkpoints.claimName, checkpoints.size"
    " or checkpoints.uri, or type Ephemeral to lose them with their pods"
)


def cluster_problems(spec: JobSpec, *, may_have_runtime: bool = False) -> list[str]:
    """Return a sentence for each thing that every cluster refuses of a manifest that is right on one machine.

    may_have_runtime: whether a runtime that is not known here may say what the manifest leaves out.
    """
    problems = []
    if spec.storage.type is None and not may_have_runtime:
        problems.append(messages.invalid("storage.type", None, STORAGE_TYPE))
    is_open = spec.storage.type is None and may_have_runtime
    if spec.weight_sync.transport == "file" and not (spec.storage.is_shared or is_open):
        needs = "trainer, rollouts and coordinator must mount one volume: set storage.checkpoints with accessMode"
        problems.append(messages.invalid("weightSync.transport", "file", f"{needs} ReadWriteMany, or use grpc"))
    if spec.agents is not None and spec.rollout.gateway_key is None:
        needs = f"{KEY_VARIABLE} from a Secret (valueFrom.secretKeyRef): agents get that key as a file"
        problems.append(messages.invalid("rollout.pod.env", None, needs))
    if spec.resume_from is not None and spec.resume_from.job is not None:
        works = "resumeFrom.uri, as that job's status.lastCheckpoint has it, on the same storage.checkpoints.claimName"
        written = f"spec.resumeFrom.job = {spec.resume_from.job!r}"
        problems.append(f"not supported yet: {written} in a cluster (what works: {works})")
    return problems


def broken(section: Section, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the name of each broken rule of a section and of the sections in it, with its sentence."""
    for name, check, _ in base.rules_of(type(section)):
        for below, value, reason in check(section):
            yield f"{type(section).__name__}.{name}", messages.invalid(_joined(path, below), value, reason)
    for key, because in section.unused().items():
        value = written_value(section, key)
        if value is not None:
            yield UNUSED, messages.invalid(_joined(path, key), value, base.no_effect(because))
    for key, info in fields.fields_of(type(section)).items():
        value, below = getattr(section, fields.attribute(type(section), key)), _joined(path, key)
        if isinstance(value, Section):
            yield from broken(value, below)
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                if isinstance(item, Section):
                    yield from broken(item, f"{below}[{index}]")
            if isinstance(info.json_schema_extra, dict):
                yield from _duplicates(value, below, info.json_schema_extra.get("x-kubernetes-list-map-keys"))


def names_of_all() -> set[str]:
    """Return the names that `broken` gives to the rules of all sections."""
    return {UNUSED, DUPLICATE, *_names(JobSpec)}


def _names(section: type[BaseModel]) -> Iterator[str]:
    yield from (f"{section.__name__}.{name}" for name, _, _ in base.rules_of(section))
    parts = (fields.model_in(info.annotation) for info in section.model_fields.values())
    for part in parts:
        if part is not None:
            yield from _names(part)


def written_value(section: Section, path: str) -> object:
    """Return the value that was written at a path below a section; None if there is none."""
    value: object = section
    for key in path.split("."):
        if not isinstance(value, Section):
            return None
        name = fields.attribute(type(value), key)
        if not value.is_written(name):
            return None
        value = getattr(value, name)
    return value


def _joined(path: str, below: str) -> str:
    return f"{path}.{below}" if path and below else path or below


def _duplicates(items: Sequence[object], path: str, keys: object) -> Iterator[tuple[str, str]]:
    """Refuse lists that are keyed by a field and have a key twice."""
    for key in keys if isinstance(keys, list) else ():
        counts = Counter(
            getattr(item, fields.attribute(type(item), key)) for item in items if isinstance(item, Section)
        )
        for name in (name for name, count in counts.items() if count > 1):
            reason = f"that {key} occurs {counts[name]} times and must be unique in the list"
            yield DUPLICATE, messages.invalid(path, name, reason)


def twins() -> Iterator[CelRule]:
    """Yield the rules that the API server checks too, each at its schema node."""
    yield from _twins(JobSpec, "spec")


def _twins(section: type[BaseModel], path: str) -> Iterator[CelRule]:
    for _, _, cel_rules in base.rules_of(section):
        yield from (dataclasses.replace(rule, at=path) for rule in cel_rules)
    for key, info in fields.fields_of(section).items():
        below = fields.model_in(info.annotation)
        if below is not None:
            yield from _twins(below, f"{path}.{key}[]" if fields.is_list(info.annotation) else f"{path}.{key}")


def teacher_of_itself(spec: JobSpec) -> Iterator[str]:
    """A policy that is its teacher is where it is to go."""
    teacher, model = spec.teacher, spec.model
    if teacher is None or teacher.task_reward or spec.sft is not None or spec.resume_from is not None:
        return
    if (teacher.model, teacher.revision) == (model.name, model.revision):
        because = "it is the model that is trained, so there is nothing to learn from it: name a better one"
        yield messages.invalid("teacher.model", teacher.model, because)


def shared_baseline_of_turns(spec: JobSpec) -> Iterator[str]:
    """Rows of different turns share a baseline."""
    blocks = (spec.algorithm.normalize_reward, spec.algorithm.advantage_normalization)
    levels = {level for block in blocks if block is not None for level in (block.mean, block.std)}
    if spec.workflow.is_legacy_multi_turn and "Group" in levels:
        yield messages.invalid(
            "workflow.config.layout", "legacy", "rows of different turns share one baseline under a level of groups"
        )


def lone_feedback(spec: JobSpec) -> Iterator[str]:
    """A rendered user message in mid-conversation brings the default system prompt with it."""
    if spec.workflow.is_legacy_multi_turn and spec.workflow.config.get("legacyFeedback"):
        yield messages.invalid(
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
        if value == "None":
            yield messages.invalid(f"algorithm.loss.rolloutCorrection.{key}", "None", f"samples may be {eta} steps old")


def product_bounds(spec: JobSpec) -> Iterator[str]:
    """Products of ratios grow with length."""
    block, longest = spec.algorithm.loss.rollout_correction, spec.rollout.sampling.max_tokens
    if block is not None and block.agg == "Sum" and longest > LONG_ANSWER_TOKENS:
        yield messages.invalid(
            "algorithm.loss.rolloutCorrection.agg",
            "Sum",
            f"products over up to {longest} tokens punish long answers; watch the masked share",
        )


def wide_gspo_band(spec: JobSpec) -> Iterator[str]:
    """Sequence ratios are geometric means and stay close to 1."""
    if spec.algorithm.loss.type == "gspo" and spec.algorithm.loss.clip_low > GSPO_USUAL_CLIP:
        yield messages.invalid("algorithm.loss.clipLow", spec.algorithm.loss.clip_low, 'gspo is published with "3e-4"')


def band_without_effect(spec: JobSpec) -> Iterator[str]:
    """The band is around the policy that a step starts from: the first update is made there, where the ratio is 1."""
    loss, updates = spec.algorithm.loss, spec.algorithm.updates_per_step
    if updates > 1 or loss.proximal not in ("Recompute", "Reuse"):
        return
    for key in ("clipLow", "clipHigh", "dualClip", "tauPos", "tauNeg"):
        if (value := written_value(loss, key)) is not None:
            yield messages.invalid(
                f"algorithm.loss.{key}",
                value,
                f"a step makes one update from proximal {loss.proximal}, where the ratio is 1 and no bound acts;"
                " set algorithm.minibatches or algorithm.epochs to 2 or more, or algorithm.loss.proximal Behavior,"
                " whose band is around the policy that sampled",
            )


def template_without_its_grader(spec: JobSpec) -> Iterator[str]:
    """The prompt asks for one form of answer and the grader for another."""
    yield from _unfit("data.template", spec.data.template, spec.verifier.rewards)
    for index, suite in enumerate(spec.evaluation.suites):
        if suite.template or suite.rewards:
            template, rewards = suites.template(spec, suite), suite.rewards or spec.verifier.rewards
            yield from _unfit(f"evaluation.suites[{index}].template", template, rewards)


def _unfit(path: str, template: str, rewards: Sequence[RewardSpec]) -> Iterator[str]:
    graders = {"r1": ("boxed",), "qwen_math": ("answer_tag",), "raw": ("answer_tag",)}
    for reward in rewards:
        if reward.type in graders.get(template, ()):
            yield messages.invalid(
                path, template, f"reward {reward.name} is of type {reward.type}, which it does not ask for"
            )


def rounded_before_served(spec: JobSpec) -> Iterator[str]:
    """Updates smaller than the served format's step move the trainer and not the rollouts."""
    if spec.trainer.dtype != "float32":
        return
    if spec.model.dtype != "float32":
        yield messages.invalid(
            "trainer.dtype",
            "float32",
            f"versions are published in spec.model.dtype {spec.model.dtype}: rollouts sample from rounded weights,"
            ' which swallows small updates; use "bfloat16", or spec.model.dtype "float32"',
        )
    elif spec.rollout.engine.dtype not in (None, "float32"):
        yield messages.invalid(
            "rollout.engine.dtype",
            spec.rollout.engine.dtype,
            "the engine rounds the float32 weights that it is given, which swallows small updates; leave it out",
        )


def wider_than_trained(spec: JobSpec) -> Iterator[str]:
    """Twice the bytes for the same numbers."""
    if spec.model.dtype == "float32" and spec.trainer.dtype == "bfloat16":
        yield messages.invalid(
            "model.dtype",
            "float32",
            "the weights of a trainer in bfloat16 are published, which are no finer for twice the bytes;"
            ' use "bfloat16", or spec.trainer.dtype "float32"',
        )


def scaled_in_a_cluster_only(spec: JobSpec) -> Iterator[str]:
    """On one machine there is nothing that scales."""
    scaling = spec.rollout.autoscaling
    if scaling is not None:
        yield messages.invalid(
            "rollout.autoscaling.provider", scaling.provider, "on one machine the replicas stay as they are"
        )


def unconfined_programs(spec: JobSpec) -> Iterator[str]:
    """What the policy writes runs next to everything else that the verifier may reach."""
    programs = [reward.name for _, _, reward in suites.rewards(spec) if reward.type in PROGRAM_REWARDS]
    if programs and spec.verifier.isolation.type == "None":
        yield messages.invalid(
            "verifier.isolation.type",
            "None",
            f"reward {programs[0]} runs what the policy wrote: only its time, memory, processes and output are limited",
        )


def served_in_a_cluster_only(spec: JobSpec) -> Iterator[str]:
    """A RuntimeClass is a pod's, and which ones a job may ask for is a setting of the operator's."""
    if spec.verifier.isolation.runtime_class:
        yield messages.invalid(
            "verifier.isolation.runtimeClassName",
            spec.verifier.isolation.runtime_class,
            "it is for pods alone: rljob run refuses it, and a cluster takes it if its operator lists the RuntimeClass"
            " (jobs.runtimeClasses of the chart)",
        )


def groups_above_a_message(spec: JobSpec) -> Iterator[str]:
    """A group is handed in as one message."""
    tokens = spec.algorithm.group_size * spec.longest_row
    mib = tokens * enums.GROUP_BYTES_PER_TOKEN >> 20
    if tokens * enums.GROUP_BYTES_PER_TOKEN > enums.MAX_BATCH_PART_BYTES:
        yield messages.invalid(
            "algorithm.groupSize",
            spec.algorithm.group_size,
            f"groups of rows of up to {spec.longest_row} tokens may have {mib} MiB, and one above"
            f" {enums.MAX_BATCH_PART_BYTES >> 20} MiB is not trained: it fails as TooLargeError",
        )


def idle_gpus(spec: JobSpec) -> Iterator[str]:
    """A pod that asks for more GPUs than its processes use."""
    used = {"rollout": (spec.rollout.pod, spec.rollout.engine.num_gpus, "rollout.engine.tensorParallelSize")}
    used["trainer"] = (spec.trainer.pod, spec.trainer.processes_per_node, "trainer.processesPerNode")
    for role, (pod, count, field) in used.items():
        if sum(pod.gpus.values()) > count:
            name = next(iter(pod.gpus))
            yield messages.invalid(
                f"{role}.pod.resources.limits.{name}", pod.gpus[name], f"{field} uses {count}: the others idle"
            )


WARNINGS = (
    idle_gpus,
    groups_above_a_message,
    shared_baseline_of_turns,
    lone_feedback,
    teacher_of_itself,
    uncapped_weight,
    product_bounds,
    wide_gspo_band,
    band_without_effect,
    template_without_its_grader,
    rounded_before_served,
    wider_than_trained,
    unconfined_programs,
)
ONE_MACHINE_WARNINGS = (scaled_in_a_cluster_only, served_in_a_cluster_only)
