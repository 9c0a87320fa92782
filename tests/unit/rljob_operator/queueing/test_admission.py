import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import enums
from rljob_operator.model import WORKLOAD, Child, Observed, Pod, Ref
from rljob_operator.queueing import admission, workload
from rljob_operator.resources import workloads
from rljob_testing import stand_in_queue
from rljob_testing.queues import inputs_of, queued_job

R, T = enums.Role.ROLLOUT, enums.Role.TRAINER


def child(status: dict[str, Any] | None = None, **spec: Any) -> Child:
    manifest: dict[str, Any] = workload.workload(inputs_of(queued_job()), queue="research")
    manifest = {**manifest, "spec": {**manifest["spec"], **spec}, "status": status or {}}
    return Child(ref=Ref(WORKLOAD, str(manifest["metadata"]["name"])), uid="w-1", manifest=manifest, version=3)


def admitted(**arguments: Any) -> Child:
    plain = child()
    return dataclasses.replace(
        plain, manifest={**plain.manifest, "status": stand_in_queue.admitted(plain.manifest, **arguments)}
    )


def observed(*children: Child, labels: dict[str, str] | None = None, pods: tuple[Pod, ...] = ()) -> Observed:
    return Observed(job=queued_job(labels=labels), children={each.ref: each for each in children}, pods=pods)


def test_a_job_without_a_label_is_asked_about_by_no_queue_unless_the_installation_has_one() -> None:
    assert admission.quota(observed(labels={})) is None
    found = admission.quota(observed(labels={}), default_queue="shared")
    assert found is not None
    assert (found.queue, found.admitted, found.reason) == ("shared", False, "WaitingForQuota")


def test_the_label_of_a_job_wins_over_the_queue_of_the_installation() -> None:
    found = admission.quota(observed(), default_queue="shared")
    assert found is not None
    assert found.queue == "research"


def test_a_job_without_quota_is_as_if_it_were_suspended_and_its_manifest_is_remembered() -> None:
    seen = observed()
    held = admission.effective(seen, admission.quota(seen))
    assert held.job.spec.suspend
    assert held.quota is not None
    assert not held.quota.suspended_by_user


def test_an_admitted_job_is_as_its_manifest_says() -> None:
    seen = observed(admitted())
    let = admission.effective(seen, admission.quota(seen))
    assert let.job == seen.job


def test_reserved_quota_with_checks_that_are_not_done_is_not_admitted() -> None:
    given_status = stand_in_queue.admitted(child().manifest)
    given_status["conditions"] = [each for each in given_status["conditions"] if each["type"] != "Admitted"]
    given_status["admissionChecks"] = [{"name": "prov", "state": "Pending", "message": "waiting for nodes"}]
    found = admission.quota(observed(child(given_status)))
    assert found is not None
    assert not found.admitted
    assert found.message == "waits for quota in queue research: waiting for nodes"


def test_a_run_keeps_the_queue_that_admitted_it_whatever_its_label_says() -> None:
    pod = Pod(name="job-rollout-0", uid="p", role=R)
    found = admission.quota(observed(admitted(), labels={workload.QUEUE_LABEL: "other"}, pods=(pod,)))
    assert found is not None
    assert (found.queue, found.admitted) == ("research", True)


SPOT = {"nodeLabels": {"pool": "spot"}, "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}]}


def test_pods_go_where_their_flavor_is_and_tolerate_what_it_tolerates() -> None:
    placed = admission.placements(admitted(flavor="spot"), {"spot": SPOT})
    assert placed[T].node_labels == {"pool": "spot"}
    assert placed[T].tolerations == tuple(SPOT["tolerations"]), "once, though it stands for two resources"
    job = queued_job(trainer={"nodes": 2, "pod": {"nodeSelector": {"zone": "a"}}})
    made: Any = workloads.trainer_job(inputs_of(job, placed), attempt=1)
    spec = made["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"zone": "a", "pool": "spot"}
    assert spec["tolerations"] == SPOT["tolerations"]


def test_another_flavor_is_another_template() -> None:
    job = queued_job()
    marks = set()
    for specs in ({"spot": SPOT}, {"spot": {"nodeLabels": {"pool": "owned"}}}):
        placed = admission.placements(admitted(flavor="spot"), specs)
        made: Any = workloads.rollout_deployment(inputs_of(job, placed), replicas=1)
        marks.add(made["spec"]["template"]["metadata"]["annotations"]["rljob.dev/template-hash"])
    assert len(marks) == 2


def test_what_an_admission_check_adds_reaches_the_pods_of_its_pod_set_alone() -> None:
    status = stand_in_queue.admitted(child().manifest)
    update = {"name": "trainer", "annotations": {"consume": "request-1"}, "nodeSelector": {"pool": "new"}}
    status["admissionChecks"] = [{"name": "prov", "state": "Ready", "podSetUpdates": [update]}]
    placed = admission.placements(child(status), {})
    assert (placed[T].annotations, placed[T].node_labels) == ({"consume": "request-1"}, {"pool": "new"})
    assert (placed[R].annotations, placed[R].node_labels) == ({}, {})


def test_pods_with_an_assigned_topology_are_gated_until_kueue_has_a_place_for_each() -> None:
    status = stand_in_queue.admitted(child().manifest)
    for assignment in status["admission"]["podSetAssignments"]:
        assignment["topologyAssignment"] = {"levels": ["kubernetes.io/hostname"], "slices": []}
    held = child(status)
    made: Any = workloads.trainer_job(inputs_of(queued_job(), admission.placements(held, {})), attempt=1)
    template = made["spec"]["template"]
    assert template["spec"]["schedulingGates"] == [{"name": "kueue.x-k8s.io/topology"}]
    assert template["metadata"]["labels"]["kueue.x-k8s.io/podset"] == "trainer"
    assert template["metadata"]["annotations"]["kueue.x-k8s.io/workload"] == held.ref.name


@given(least=st.integers(1, 20), more=st.integers(0, 20), replicas=st.integers(1, 60), part=st.floats(0, 1))
def test_rollouts_are_never_more_than_were_admitted_and_never_fewer_than_the_least(
    least: int, more: int, replicas: int, part: float
) -> None:
    scaling = {"minReplicas": least, "maxReplicas": least + more}
    job = queued_job(rollout={"replicas": replicas, "autoscaling": scaling})
    granted = least + int(more * part)
    held = admitted(counts={"rollout": granted})
    seen = Observed(job=job, children={held.ref: held})
    spec = admission.effective(seen, admission.quota(seen)).job.spec.rollout
    assert spec.autoscaling is not None
    assert least <= spec.autoscaling.min_replicas <= spec.autoscaling.max_replicas == granted
    assert spec.replicas == min(replicas, granted)


@pytest.mark.parametrize(
    ("detail", "reason"),
    [
        ("insufficient unused quota for gpu in flavor a, 2 more needed", "WaitingForQuota"),
        (
            "insufficient quota for gpu in flavor a, current podset request (9) > maximum capacity (8)",
            "ExceedsMaxQuota",
        ),
        ("flavor a doesn't match node affinity", "NoMatchingFlavor"),
        ("untolerated taint spot in flavor a", "NoMatchingFlavor"),
    ],
)
def test_kueues_sentence_has_a_reason_of_ours(detail: str, reason: str) -> None:
    sentence = f"couldn't assign flavors to pod set trainer: {detail}"
    found = admission.quota(observed(child(stand_in_queue.pending(child().manifest, sentence))))
    assert found is not None
    assert (found.reason, found.message) == (reason, f"waits for quota in queue research: {sentence}")
