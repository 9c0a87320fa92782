"""Gangs: all pods of a trainer attempt get their nodes at once or none does, so that no part of one holds GPUs.

A group per attempt: pods of the attempt before, which may still end, are not counted. A trainer of one pod needs none.

| scheduler | object | how a pod joins |
|---|---|---|
| native | scheduling.k8s.io/v1alpha2 PodGroup, policy gang | spec.schedulingGroup.podGroupName |
| volcano | scheduling.volcano.sh/v1beta1 PodGroup | annotation scheduling.k8s.io/group-name |
| coscheduling | scheduling.x-k8s.io/v1alpha1 PodGroup | label scheduling.x-k8s.io/pod-group |
"""

from collections.abc import Mapping, Set
from typing import Any

from rljob_api import enums
from rljob_api.manifest.job import JobSpec
from rljob_operator.model import POD_GROUP
from rljob_operator.resources.inputs import Inputs, Manifest, child_name, labels, metadata
from rljob_operator.settings import GangScheduler, JobSettings

API_VERSIONS: Mapping[GangScheduler, str] = {
    "native": "scheduling.k8s.io/v1alpha2",
    "volcano": "scheduling.volcano.sh/v1beta1",
    "coscheduling": "scheduling.x-k8s.io/v1alpha1",
}
# Of Kubernetes' own scheduler the pods name none.
_SCHEDULER_NAMES: Mapping[GangScheduler, str] = {
    "volcano": "volcano",
    "coscheduling": "scheduler-plugins-scheduler",
}
VOLCANO_GROUP = "scheduling.k8s.io/group-name"
COSCHEDULING_GROUP = "scheduling.x-k8s.io/pod-group"
# Where in a pod template its group is named.
_JOINS = (("spec", "schedulingGroup"), ("annotations", VOLCANO_GROUP), ("labels", COSCHEDULING_GROUP))
_ROLE = enums.Role.TRAINER


def is_gang(spec: JobSpec, settings: JobSettings) -> bool:
    """Return whether the pods of a trainer attempt are placed together."""
    return settings.gang_scheduler != "none" and spec.trainer.nodes > 1


def missing_api(spec: JobSpec, settings: JobSettings, served: Set[str]) -> str:
    """Return the API version that the gang needs and the cluster does not serve; empty if nothing is missing."""
    if not is_gang(spec, settings):
        return ""
    needed = API_VERSIONS[settings.gang_scheduler]
    return "" if needed in served else needed


def pod_group(inputs: Inputs, *, attempt: int) -> Manifest | None:
    """Return the group of an attempt's pods, under the name of its Job; None where pods are placed one by one."""
    if not is_gang(inputs.job.spec, inputs.settings):
        return None
    number = inputs.job.spec.trainer.nodes
    specs: Mapping[GangScheduler, Manifest] = {
        "native": {"schedulingPolicy": {"gang": {"minCount": number}}},
        "volcano": {"minMember": number},
        "coscheduling": {"minMember": number},
    }
    scheduler = inputs.settings.gang_scheduler
    return {
        "apiVersion": API_VERSIONS[scheduler],
        "kind": POD_GROUP,
        "metadata": metadata(inputs, child_name(inputs, _ROLE, attempt), labels(inputs, _ROLE)),
        "spec": specs[scheduler],
    }


def with_group_of(template: dict[str, Any], member: Mapping[str, Any]) -> None:
    """Make a pod template, of another attempt, join the group that `member` joins."""
    for part, key in _JOINS:
        of_member = member[part].get(key) if part == "spec" else (member["metadata"].get(part) or {}).get(key)
        if of_member is not None:
            below = template[part] if part == "spec" else template["metadata"].setdefault(part, {})
            below[key] = of_member


def joined(inputs: Inputs, template: Manifest, *, attempt: int) -> Manifest:
    """Return the pod template of an attempt as a member of its group."""
    if not is_gang(inputs.job.spec, inputs.settings):
        return template
    scheduler, name = inputs.settings.gang_scheduler, child_name(inputs, _ROLE, attempt)
    parts, spec = template["metadata"], template["spec"]
    assert isinstance(parts, dict), "made by pod_template"
    assert isinstance(spec, dict), "made by pod_template"
    if scheduler == "native":
        spec = {**spec, "schedulingGroup": {"podGroupName": name}}
    elif scheduler == "volcano":
        parts = {**parts, "annotations": {**parts["annotations"], VOLCANO_GROUP: name}}
    else:
        parts = {**parts, "labels": {**parts["labels"], COSCHEDULING_GROUP: name}}
    scheduler_name = inputs.settings.gang_scheduler_name or _SCHEDULER_NAMES.get(scheduler, "")
    return {"metadata": parts, "spec": {**spec, **({"schedulerName": scheduler_name} if scheduler_name else {})}}
