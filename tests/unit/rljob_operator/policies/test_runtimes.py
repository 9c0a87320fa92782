"""Which runtime a job has: the one it was begun with while a segment is under way, else the object as it is."""

from typing import Any

import pytest

from rljob_api.manifest.runtime import JobRuntime
from rljob_operator.model import RUNTIME_KEY, Child, Ref
from rljob_operator.policies import runtimes
from rljob_operator.policies.runtimes import Found
from rljob_testing import runtime_makers

CONFIG = Ref("ConfigMap", "run-config")
SUSPENDED = {"conditions": [{"type": "Suspended", "status": "True"}]}


def job(*, name: str | None = "platform", kind: str = "ClusterRLJobRuntime", **parts: Any) -> dict[str, Any]:
    reference = {} if name is None else {"runtimeRef": {"name": name, "kind": kind}}
    return {"metadata": {"name": "run", "namespace": "team"}, "spec": {"maxSteps": 3, **reference}, **parts}


def runtime(generation: int, **defaults: object) -> JobRuntime:
    """Return a generation of one runtime."""
    document = runtime_makers.document(defaults=defaults)
    document["metadata"] = {"name": "platform", "uid": "u", "generation": generation}
    return JobRuntime.model_validate(document)


def config(pinned: JobRuntime | None) -> dict[Ref, Child]:
    """Return the children of a job that was begun with a runtime, or without one."""
    data = {} if pinned is None else {RUNTIME_KEY: pinned.model_dump_json(by_alias=True)}
    return {CONFIG: Child(ref=CONFIG, uid="c", manifest={"data": data})}


def use(document: dict[str, Any], children: dict[Ref, Child], *served: JobRuntime, **options: Any) -> Any:
    objects = {
        (each.kind, "" if each.kind.startswith("Cluster") else "team", each.metadata.name): Found(
            runtime=each, generation=each.metadata.generation
        )
        for each in served
    }
    chosen = {"default": "", "sees_cluster": True, **options}
    return runtimes.use(document, children, lambda *key: objects.get(key), **chosen)


def test_a_job_that_has_not_begun_is_resolved_with_the_object_as_it_is() -> None:
    document, found = use(job(), {}, runtime(2, seed=7))
    assert document["spec"]["seed"] == 7
    assert (found.runtime.metadata.generation, found.current_generation, found.problems) == (2, 2, ())


def test_an_edit_does_not_change_a_run_that_is_under_way() -> None:
    document, found = use(job(), config(runtime(1, seed=1)), runtime(2, seed=2))
    assert document["spec"]["seed"] == 1
    assert (found.runtime.metadata.generation, found.current_generation) == (1, 2)


def test_an_edit_holds_for_the_next_segment() -> None:
    document, found = use(job(status=SUSPENDED), config(runtime(1, seed=1)), runtime(2, seed=2))
    assert document["spec"]["seed"] == 2
    assert found.runtime.metadata.generation == 2


def test_a_run_goes_on_without_the_object_of_its_runtime() -> None:
    document, found = use(job(), config(runtime(1, seed=1)))
    assert document["spec"]["seed"] == 1
    assert (found.current_generation, found.problems) == (None, ())


def test_a_run_that_was_begun_without_a_runtime_gets_none_while_it_is_under_way() -> None:
    document, found = use(job(name=None), config(None), runtime(1, seed=1), default="platform")
    assert "seed" not in document["spec"]
    assert found.runtime is None


def test_a_job_waits_for_a_runtime_that_does_not_exist() -> None:
    _, found = use(job(name="gpu"), {})
    assert found.reason == "ReferenceNotFound"
    assert found.problems == (
        "spec.runtimeRef is ClusterRLJobRuntime gpu, but there is none of that name: the job starts once it is created",
    )


def test_a_job_that_names_none_has_the_installations() -> None:
    document, _ = use(job(name=None), {}, runtime(1, seed=4), default="platform")
    assert document["spec"]["seed"] == 4
    assert use(job(name=None), {})[1].problems == ()


@pytest.mark.parametrize("reference", [job(), job(name=None)])
def test_an_operator_of_single_namespaces_reads_their_runtimes_alone(reference: dict[str, Any]) -> None:
    _, found = use(reference, {}, sees_cluster=False, default="mine")
    kind = "ClusterRLJobRuntime platform" if "runtimeRef" in reference["spec"] else "RLJobRuntime mine"
    assert found.problems[0].startswith(f"spec.runtimeRef is {kind}, but ")


def test_a_runtime_that_is_not_accepted_begins_no_job() -> None:
    bad = Found(runtime=runtime(1), generation=1, problems=("spec.defaults.seed is -1, but must be at least 0",))
    _, found = runtimes.use(job(), {}, lambda *_: bad, default="", sees_cluster=True)
    assert found.reason == "InvalidSpec"
    assert found.problems == (
        "spec.runtimeRef is ClusterRLJobRuntime platform, but the runtime is not accepted:"
        " spec.defaults.seed is -1, but must be at least 0",
    )
