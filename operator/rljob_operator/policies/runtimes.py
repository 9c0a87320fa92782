"""Which runtime a job is resolved with, and what of it. Pure.

A segment of a run keeps the runtime that it was begun with, as it was then: the job's ConfigMap has all of it. Where
none is under way (before the first, and while the job is suspended) the object counts as it is now.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pydantic

from rljob_api.conditions import ConditionType
from rljob_api.manifest.runtime import CLUSTER_KIND, NAMESPACED_KIND, JobRuntime
from rljob_api.validation import runtimes
from rljob_operator.model import RUNTIME_KEY, Child, Ref, RuntimeUse

NOT_FOUND, INVALID = "ReferenceNotFound", "InvalidSpec"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A runtime as it is now. problems: what is wrong with it; then no job begins with it."""

    runtime: JobRuntime | None
    generation: int
    problems: tuple[str, ...] = ()


# By kind, namespace (empty for ClusterRLJobRuntime) and name.
Lookup = Callable[[str, str, str], Found | None]


def use(
    document: Mapping[str, Any], children: Mapping[Ref, Child], lookup: Lookup, *, default: str, sees_cluster: bool
) -> tuple[dict[str, Any], RuntimeUse]:
    """Return a job, as the API server has it, with its runtime's values in its spec, and what is known of the runtime.

    default: name of the runtime of jobs that name none, empty for none. sees_cluster: whether ClusterRLJobRuntimes can
    be read; else the default one is an RLJobRuntime.
    """
    metadata, spec = document["metadata"], document.get("spec") or {}
    own_kind = CLUSTER_KIND if sees_cluster else NAMESPACED_KIND
    reference = spec.get("runtimeRef") or ({"name": default, "kind": own_kind} if default else None)
    config = None if _is_suspended(document) else children.get(Ref("ConfigMap", f"{metadata['name']}-config"))
    if config is not None:
        runtime = _pinned(config)
        if runtime is None:
            return dict(document), RuntimeUse()
        namespace = "" if runtime.kind == CLUSTER_KIND else metadata["namespace"]
        now = lookup(runtime.kind, namespace, runtime.metadata.name)
        return _applied(document, runtime, current=None if now is None else now.generation)
    if reference is None:
        return dict(document), RuntimeUse()
    kind, name = reference.get("kind", CLUSTER_KIND), str(reference.get("name"))
    label = f"{kind} {name}"
    if kind == CLUSTER_KIND and not sees_cluster:
        because = "this operator watches single namespaces and reads no ClusterRLJobRuntime: use an RLJobRuntime"
        return dict(document), RuntimeUse(reason=INVALID, problems=(_of_ref(label, because),))
    now = lookup(kind, "" if kind == CLUSTER_KIND else metadata["namespace"], name)
    if now is None:
        because = "there is none of that name: the job starts once it is created"
        return dict(document), RuntimeUse(reason=NOT_FOUND, problems=(_of_ref(label, because),))
    if now.runtime is None or now.problems:
        because = f"the runtime is not accepted: {'; '.join(now.problems)}"
        return dict(document), RuntimeUse(reason=INVALID, problems=(_of_ref(label, because),))
    return _applied(document, now.runtime, current=now.generation)


def _of_ref(label: str, because: str) -> str:
    return f"spec.runtimeRef is {label}, but {because}"


def _applied(
    document: Mapping[str, Any], runtime: JobRuntime, *, current: int | None
) -> tuple[dict[str, Any], RuntimeUse]:
    outcome = runtimes.merged(document.get("spec") or {}, runtime)
    return {**document, "spec": outcome.spec}, RuntimeUse(
        runtime=runtime, current_generation=current, origins=outcome.origins, problems=outcome.problems, reason=INVALID
    )


def _pinned(config: Child) -> JobRuntime | None:
    """Return the runtime in a job's ConfigMap; None for a run that was begun without one."""
    data = config.manifest.get("data")
    text = data.get(RUNTIME_KEY) if isinstance(data, Mapping) else None
    if text is None:
        return None
    try:
        return JobRuntime.model_validate_json(str(text))
    except pydantic.ValidationError:
        return None  # Another version wrote it, or another hand.


def _is_suspended(document: Mapping[str, Any]) -> bool:
    conditions = (document.get("status") or {}).get("conditions") or ()
    return any(
        (condition.get("type"), condition.get("status")) == (ConditionType.SUSPENDED, "True")
        for condition in conditions
    )
