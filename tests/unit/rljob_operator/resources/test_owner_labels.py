"""A job's owner labels reach every object and pod of it, and change without a restart."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from rljob_api import enums
from rljob_api.manifest.job import RLJob
from rljob_operator.model import Child, Observed, RuntimeUse, ref_of
from rljob_operator.policies import drift
from rljob_operator.reconcile import desired
from rljob_operator.resources import inputs
from rljob_operator.settings import JobSettings
from rljob_testing import runtime_makers
from rljob_testing.operator_runs import operator_job

OWNERS = {"team": "search", "cost-center": "42", "billing.example.com/account": "a-1", "free": "of charge"}
SETTINGS = JobSettings(
    images=dict.fromkeys(enums.STANDARD_ROLES, "example/rljob:1"),
    propagate_labels=("team", "cost-center", "billing.example.com/"),
    propagate_annotations=("contact",),
    pod_monitor_labels={"prometheus": "main"},
)
HANDED_ON = {key: value for key, value in OWNERS.items() if key != "free"}
SERVED = frozenset({"monitoring.coreos.com", "keda.sh"})
MANY = {
    "rollout": {"replicas": 2, "autoscaling": {"minReplicas": 1, "maxReplicas": 4, "provider": "KEDA"}},
    "storage": {"type": "Persistent", "checkpoints": {"size": "10Gi", "accessMode": "ReadWriteMany"}},
}


def owned(labels: Mapping[str, str], annotations: Mapping[str, str] | None = None) -> RLJob:
    job = operator_job(MANY)
    metadata = job.metadata.model_copy(update={"labels": dict(labels), "annotations": dict(annotations or {})})
    return job.model_copy(update={"metadata": metadata})


def objects(job: RLJob, live: Mapping[Any, Child] | None = None) -> list[dict[str, Any]]:
    answer = desired.desired_objects(Observed(job=job, children=live or {}), SETTINGS, SERVED)
    assert answer.problems == ()
    return [*answer.first, *answer.workloads(1)]  # type: ignore[list-item]  # manifests


def living(manifests: list[dict[str, Any]]) -> dict[Any, Child]:
    return {ref_of(each): Child(ref=ref_of(each), uid=f"u-{ref_of(each)}", manifest=each) for each in manifests}


def selectors(tree: object) -> Iterator[Mapping[str, object]]:
    """Yield every label selector of an object, and what a Service selects by."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            if key in ("matchLabels", "selector") and isinstance(value, Mapping) and "matchLabels" not in value:
                yield value
            else:
                yield from selectors(value)
    elif isinstance(tree, list):
        for item in tree:
            yield from selectors(item)


def templates(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    with_pods = (each for each in manifests if each["kind"] in ("Deployment", "StatefulSet", "Job"))
    return {each["metadata"]["name"]: each["spec"]["template"] for each in with_pods}


def test_every_object_and_every_pod_has_the_labels_that_are_handed_on_and_no_other() -> None:
    made = objects(owned(OWNERS, {"contact": "#search", "other": "x"}))
    kinds = {each["kind"] for each in made}
    assert {"PersistentVolumeClaim", "Service", "NetworkPolicy", "ScaledObject", "PodMonitor", "Job"} <= kinds
    for each in made:
        assert HANDED_ON.items() <= each["metadata"]["labels"].items(), each["kind"]
        assert "free" not in each["metadata"]["labels"]
        assert each["metadata"]["annotations"]["contact"] == "#search"
        assert "other" not in each["metadata"]["annotations"]
    pods = templates(made)
    assert len(pods) == len(enums.STANDARD_ROLES)
    for template in pods.values():
        assert HANDED_ON.items() <= template["metadata"]["labels"].items()
        assert template["metadata"]["annotations"]["contact"] == "#search"


def test_no_selector_has_them() -> None:
    found = [labels for each in objects(owned(OWNERS)) for labels in selectors(each.get("spec", {}))]
    assert len(found) > 10
    assert not [labels for labels in found if labels.keys() & OWNERS.keys()]


def test_another_team_changes_every_object_and_no_template_of_a_running_job() -> None:
    before = objects(owned(OWNERS))
    after = objects(owned(OWNERS | {"team": "ads", "billing.example.com/new": "b"}), living(before))
    for old, new in zip(before, after, strict=True):
        assert new["metadata"]["labels"]["team"] == "ads"
        assert drift.intent(new) != drift.intent(old)
    rolled = templates(before)
    assert {name: rolled[name] for name in rolled if "trainer" not in name} == {
        name: template for name, template in templates(after).items() if "trainer" not in name
    }


def test_a_label_that_is_taken_away_leaves_the_objects_and_no_template() -> None:
    before = objects(owned(OWNERS))
    after = objects(owned({}), living(before))
    for each in after:
        assert not each["metadata"]["labels"].keys() & OWNERS.keys()
    assert templates(after)["job-rollout"] == templates(before)["job-rollout"]


def test_our_own_labels_win() -> None:
    settings = SETTINGS.model_copy(update={"propagate_labels": ("app",)})
    given = desired.desired_objects(Observed(job=owned({"app": "x"})), settings)
    assert all(drift.labels(each)["app"] == "x" for each in given.first)
    assert inputs.propagated({"a/b": "1", "ab": "2", "a": "3"}, ("a/",)) == {"a/b": "1"}


def test_labels_of_a_runtimes_template_win_over_those_of_the_job() -> None:
    use = RuntimeUse(runtime=runtime_makers.runtime(rollout={"metadata": {"labels": {"team": "platform"}}}))
    observed = Observed(job=owned({"team": "search"}), runtime=use)
    made = [dict(each) for each in desired.desired_objects(observed, SETTINGS, SERVED).workloads(1)]
    labels = {name: template["metadata"]["labels"]["team"] for name, template in templates(made).items()}
    assert labels.pop("job-rollout") == "platform"
    assert set(labels.values()) == {"search"}


def test_a_change_of_labels_is_looked_at_although_the_generation_stays() -> None:
    first, second = (Observed(job=owned(labels)) for labels in ({"team": "a"}, {"team": "b"}))
    assert first.job.metadata.generation == second.job.metadata.generation
    assert desired.signature(first) != desired.signature(second)


@pytest.mark.parametrize(
    "key",
    ["rljob.dev/job", "app.kubernetes.io/name", "kueue.x-k8s.io/queue-name", "pod-template-hash", "rljob.dev/", ""],
)
def test_keys_that_controllers_read_cannot_be_handed_on(key: str) -> None:
    with pytest.raises(ValueError, match="means something to controllers"):
        JobSettings(propagate_labels=(key,))
