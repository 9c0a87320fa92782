"""Every effective value of a job and where it came from, as `rljob plan` prints it."""

import dataclasses
from collections.abc import Iterator

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from rljob_api import effective, fields, messages
from rljob_api.manifest.job import RLJob
from rljob_api.resolved import ResolvedJob

WRITTEN = "written"
DEFAULT = "default"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One effective value: its path, the value as text, and `written`, `default`, or what it was derived from."""

    path: str
    value: str
    why: str


def explain(job: RLJob, resolved: ResolvedJob) -> list[Row]:
    """Return the rows in the manifest's order; fields that are unset and have no derived value are left out."""
    derived = {path: (value, why) for path, value, why in _derived(job, resolved)}
    rows: list[Row] = []
    for path, written, origin in _leaves(job.spec, "spec"):
        value, why = derived.get(path, (None, "")) if written is None else (written, origin)
        rows.extend(_rows(path, value, why))
    return rows


def _rows(path: str, value: object, why: str) -> Iterator[Row]:
    """Yield one row, or one per part of a derived block; none for what is unset."""
    if isinstance(value, BaseModel):
        for name, part in value:
            yield from _rows(f"{path}.{to_camel(name)}", part, why)
    elif value is not None:
        yield Row(path=path, value=messages.show(value), why=why)


def _leaves(model: BaseModel, prefix: str) -> Iterator[tuple[str, object, str]]:
    for key in fields.fields_of(type(model)):
        name = fields.attribute(type(model), key)
        value, path = getattr(model, name), f"{prefix}.{key}"
        if key == "pod":
            continue
        if isinstance(value, BaseModel):
            yield from _leaves(value, path)
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            for index, item in enumerate(value):
                yield from _leaves(item, f"{path}[{index}]")
        else:
            yield path, value, WRITTEN if name in model.model_fields_set else DEFAULT


def _derived(job: RLJob, resolved: ResolvedJob) -> Iterator[tuple[str, object, str]]:
    algorithm, loss = resolved.coordinator.algorithm, resolved.trainer.loss
    engine, staleness = resolved.rollouts[0].engine, resolved.coordinator.staleness
    estimator = job.spec.algorithm.advantage_estimator
    yield "spec.model.tokenizer", resolved.trainer.model.tokenizer, "model.name"
    yield "spec.data.filterGroups.enabled", algorithm.filter.enabled, "true unless groupSize is 1"
    for end in ("lower", "upper"):
        bound = getattr(algorithm.filter, end)
        yield f"spec.data.filterGroups.{end}", bound, f"workflow.config.successRate{end.capitalize()}Bound"
    yield "spec.data.filterGroups.maxExtraGroups", algorithm.filter.max_extra_groups, "10 x promptsPerStep"
    yield "spec.algorithm.rewards.clip", algorithm.rewards.clip, DEFAULT
    yield "spec.algorithm.normalizeReward", algorithm.normalize_reward, f"preset of advantageEstimator {estimator}"
    yield from _derived_returns(job, resolved)
    yield "spec.algorithm.loss.clipLow", loss.clip_low, DEFAULT
    yield "spec.algorithm.loss.clipHigh", loss.clip_high, "clipLow"
    yield "spec.algorithm.loss.proximal", loss.proximal, DEFAULT
    yield "spec.algorithm.loss.aggregation", loss.aggregation, f"loss.type {loss.type}"
    if loss.aggregation == "constant":
        yield "spec.algorithm.loss.constantDenominator", loss.constant_denominator, "rollout.sampling.maxTokens"
    if loss.correction is not None:
        yield "spec.algorithm.loss.rolloutCorrection", loss.correction, "corrects staleness and engine mismatch"
        yield "spec.algorithm.loss.rolloutCorrection.high", loss.correction.high, "mode truncate"
        yield "spec.algorithm.loss.rolloutCorrection.weighting", loss.correction.weighting, DEFAULT
    yield "spec.async.onStale", staleness.on_stale, DEFAULT
    yield "spec.async.inFlightWeightUpdates", staleness.in_flight_weight_updates, "true unless maxOffPolicySteps is 0"
    yield "spec.async.maxInflightGroups", staleness.max_inflight_groups, "(maxOffPolicySteps + 1) x promptsPerStep"
    yield "spec.rollout.engine.maxModelLen", engine.max_model_len, "longest prompt + longest answer"
    yield "spec.rollout.engine.dtype", engine.dtype, "model.dtype"
    limits = {reward.name: reward.cpu_limit_s for reward in resolved.verifiers[0].rewards if not reward.suite}
    yield "spec.verifier.timeoutSeconds", limits, "by grader"
    yield "spec.verifier.maxConcurrent", resolved.verifiers[0].max_concurrent, "processor cores"
    yield from _derived_evaluation(resolved)
    for index in range(len(job.spec.evaluation.suites)):
        path, rewards = f"spec.evaluation.suites[{index}]", [reward.name for reward in job.spec.verifier.rewards]
        yield f"{path}.template", job.spec.data.template, "data.template"
        yield f"{path}.rewards", rewards, "verifier.rewards"


def _derived_returns(job: RLJob, resolved: ResolvedJob) -> Iterator[tuple[str, object, str]]:
    """Yield what the estimator makes of rewards over time; a value that it has no use for stays unset."""
    returns, estimator = resolved.trainer.returns, job.spec.algorithm.advantage_estimator
    if returns is None:
        return
    if returns.normalize is not None:
        yield "spec.algorithm.normalizeAdvantage", returns.normalize, f"preset of advantageEstimator {estimator}"
    if estimator in effective.WHITENING_ESTIMATORS:
        yield "spec.algorithm.gae.gamma", returns.gamma, DEFAULT
        yield "spec.algorithm.gae.unit", returns.unit, DEFAULT
    if resolved.trainer.critic is not None:
        yield "spec.algorithm.gae.lambda", returns.decay.value, DEFAULT
        yield "spec.algorithm.gae.bootstrapTruncated", returns.bootstrap_truncated, "true unless zeroTruncated"


def _derived_evaluation(resolved: ResolvedJob) -> Iterator[tuple[str, object, str]]:
    sampling, why = resolved.coordinator.evaluation.sampling, "rollout.sampling"
    path = "spec.evaluation.sampling"
    yield f"{path}.maxTokens", sampling.max_tokens, why
    yield f"{path}.minTokens", sampling.min_tokens, why
    yield f"{path}.stop", list(sampling.stop), why
    yield f"{path}.stopTokenIds", list(sampling.stop_token_ids), why
    yield f"{path}.ignoreEos", sampling.ignore_eos, why
