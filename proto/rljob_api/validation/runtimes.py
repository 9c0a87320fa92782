"""A job's spec and its runtime as one spec, and what is wrong with a runtime. Pure.

    fixed     wins; a job that writes another value is refused
    job       what is written
    defaults  of the runtime, where the job writes nothing
    schema    defaults of the fields, filled in by the models later

Mappings are merged key by key, lists replace each other. Where a job writes another `type` of a section than the
runtime's defaults do, nothing of that section comes from the defaults: they are of the other type.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from pydantic import JsonValue, ValidationError

from rljob_api import errors
from rljob_api.manifest.job import JobSpec, RLJob
from rljob_api.manifest.runtime import JobRuntime, RoleTemplatesSpec
from rljob_api.validation import fields, load, messages, pod_templates, rules

Document = dict[str, JsonValue]
DEFAULTS, FIXED = "defaults", "fixed"
# A runtime stands in the ConfigMap of each job that runs with it, which may have 1 MiB in all.
MAX_BYTES = 65_536

_OF_THE_JOB = {
    "runtimeRef": "a runtime refers to no other",
    "suspend": "each job is suspended by itself",
    "retry": "each job is retried by itself",
    "managedBy": "it is a job's own and immutable",
    "resumeFrom": "it is the history of one job",
    "rollout.replicas": "autoscalers write it into the job: use rollout.autoscaling",
}
# The smallest spec, so that a part of one can be checked by the models of the whole.
_LEAST: Document = {
    "maxSteps": 1,
    "model": {"name": "any"},
    "data": {"train": [{"name": "any", "path": "any"}]},
    "verifier": {"rewards": [{"name": "any", "type": "exact"}]},
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """A job's spec with its runtime's values. origins: where those came from, by path below spec. problems: sentences
    on what the job writes against the runtime.
    """

    spec: Document
    origins: Mapping[str, str] = dataclasses.field(default_factory=dict)
    problems: tuple[str, ...] = ()


def merged(spec: Mapping[str, JsonValue], runtime: JobRuntime) -> Merged:
    """Return the spec of a job, as it was written, with the values of its runtime."""
    defaults, fixed = runtime.spec.defaults, runtime.spec.fixed
    problems = tuple(_differences(spec, fixed, runtime.label))
    with_defaults = _over(defaults, spec)
    origins = {path: f"defaults of {runtime.label}" for path in _leaves(defaults) if _at(spec, path) is _ABSENT}
    origins = {path: origin for path, origin in origins.items() if _at(with_defaults, path) is not _ABSENT}
    origins |= dict.fromkeys(_leaves(fixed), f"fixed by {runtime.label}")
    return Merged(spec=_over(with_defaults, fixed, by_type=False), origins=origins, problems=problems)


def with_runtime(document: JsonValue, runtime: JobRuntime) -> tuple[JsonValue, Merged]:
    """Return a manifest with the values of its runtime in its spec. One without a spec is returned as it is."""
    if not isinstance(document, dict) or not isinstance(document.get("spec"), dict):
        return document, Merged(spec={})
    outcome = merged(cast(Document, document["spec"]), runtime)
    return {**document, "spec": outcome.spec}, outcome


def problems_with(document: JsonValue, runtime: JobRuntime) -> list[str]:
    """Return a sentence for everything that a cluster refuses of a manifest whose runtime is known, its values among
    them.
    """
    whole, outcome = with_runtime(document, runtime)
    if outcome.problems:
        return list(outcome.problems)
    try:
        job = load.load_manifest(json.dumps(whole))
    except errors.ManifestError as error:
        return attributed(error.problems, outcome.origins)
    refused = [*rules.problems(job.spec), *rules.cluster_problems(job.spec), *template_problems(job, runtime)]
    return attributed(refused, outcome.origins)


def attributed(problems: Sequence[str], origins: Mapping[str, str]) -> list[str]:
    """Return sentences on a spec, those on a value that came from a runtime with that behind them."""
    return [_attributed(problem, origins) for problem in problems]


def _attributed(problem: str, origins: Mapping[str, str]) -> str:
    path = problem.partition(" ")[0].removeprefix("spec.")
    return f"{problem} ({origins[path]})" if path in origins else problem


def template_problems(job: RLJob, runtime: JobRuntime) -> Iterator[str]:
    """Yield what a job's own pods set that the runtime's templates set too."""
    pods = {
        "coordinator": job.spec.coordinator.pod,
        "rollout": job.spec.rollout.pod,
        "verifier": job.spec.verifier.pod,
        "trainer": job.spec.trainer.pod,
    }
    for role, pod in pods.items():
        template = getattr(runtime.spec.template, role)
        own = pod.model_dump(mode="json", by_alias=True, exclude_none=True)
        for path, value in pod_templates.differences(own, template or {}):
            because = f"{runtime.label} has another in its pod template: leave it out"
            yield messages.invalid(f"{role}.pod.{path}", value, because)


def problems(runtime: JobRuntime) -> list[str]:
    """Return a sentence for everything that is wrong with a runtime, by field."""
    size = len(runtime.spec.model_dump_json(by_alias=True))
    if size > MAX_BYTES:
        return [f"spec has {size} bytes as JSON, but may have at most {MAX_BYTES}"]
    return list(_problems(runtime))


def _problems(runtime: JobRuntime) -> Iterator[str]:
    parts = {DEFAULTS: runtime.spec.defaults, FIXED: runtime.spec.fixed}
    for name, part in parts.items():
        for path, because in _OF_THE_JOB.items():
            value = _at(part, path)
            if value is not _ABSENT:
                yield f"spec.{name}.{path} is {messages.show(value)}, but {because}; leave it out"
        yield from (f"spec.{name}.{problem}" for problem in _wrong_values(part))
    for path in sorted(set(_leaves(parts[DEFAULTS])) & set(_leaves(parts[FIXED]))):
        yield f"spec.defaults.{path} is {messages.show(_at(parts[DEFAULTS], path))}, but spec.fixed has it: write one"
    for role in fields.fields_of(RoleTemplatesSpec):
        template = getattr(runtime.spec.template, role)
        if template is not None:
            yield from (f"spec.template.{role}.{problem}" for problem in pod_templates.problems(role, template))


def _wrong_values(part: Document) -> list[str]:
    """Return what the models of a job refuse of a part of its spec. What is left out of it a job may write."""
    whole = _over(_LEAST, part, by_type=False)
    try:
        JobSpec.model_validate_json(json.dumps(whole))
    except ValidationError as error:
        return messages.explain_errors(error, document=whole, model=JobSpec, is_part=True)
    return []


def load_runtime(text: str) -> JobRuntime:
    """Return the runtime that a YAML text describes. Raises ManifestError with one sentence per problem."""
    document = load.load_document(text, keep_nulls_below=("template",))
    try:
        runtime = JobRuntime.model_validate_json(load.to_json(document))
    except ValidationError as error:
        raise errors.ManifestError(*messages.explain_errors(error, document=document, model=JobRuntime)) from error
    if wrong := problems(runtime):
        raise errors.ManifestError(*wrong)
    return runtime


class _Absent:
    pass


_ABSENT = _Absent()


def _over(below: Mapping[str, JsonValue], above: Mapping[str, JsonValue], *, by_type: bool = True) -> Document:
    """Return two mappings as one, `above` winning. by_type: what is below goes where the two are of another type."""
    types = (below.get("type", _ABSENT), above.get("type", _ABSENT))
    if by_type and _ABSENT not in types and types[0] != types[1]:
        return dict(above)
    whole: Document = dict(below)
    for key, value in above.items():
        lower = whole.get(key)
        both = isinstance(lower, dict) and isinstance(value, dict)
        whole[key] = _over(cast(Document, lower), cast(Document, value), by_type=by_type) if both else value
    return whole


def _leaves(part: Mapping[str, JsonValue], path: str = "") -> Iterator[str]:
    """Yield the paths of the values of a part that are no mappings."""
    for key, value in part.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}"


def _at(part: Mapping[str, JsonValue], path: str) -> JsonValue | _Absent:
    """Return the value at a path. A key may have dots of its own, as names of resources have."""
    for key, value in part.items():
        if key == path:
            return value
        if path.startswith(f"{key}.") and isinstance(value, dict):
            inner = _at(value, path.removeprefix(f"{key}."))
            if not isinstance(inner, _Absent):
                return inner
    return _ABSENT


def _differences(spec: Mapping[str, JsonValue], fixed: Document, label: str) -> Iterator[str]:
    for path in _leaves(fixed):
        written, value = _at(spec, path), _at(fixed, path)
        if not isinstance(written, _Absent) and not _same(written, value):
            yield messages.invalid(path, written, f"{label} fixes it at {messages.show(value)}: leave it out")


def _same(written: JsonValue, value: object) -> bool:
    """Return whether two values mean the same: a quantity may be a number or a text."""
    numbers = all(isinstance(each, int | str) and not isinstance(each, bool) for each in (written, value))
    return str(written) == str(value) if numbers else written == value
