"""What a job asks its queue for: one Kueue Workload with a pod set per role. Pure.

    trainer      nodes
    rollout      as many as may be wanted; at least minReplicas where the job scales them: partial admission
    verifier     replicas
    agents       replicas
    environment  replicas
    coordinator  1

Pod sets cannot be changed, so the name has a digest of what a queue decides by: another need is another Workload.
"""

import hashlib
import json
from collections.abc import Callable, Mapping

from rljob_api import enums, suites
from rljob_operator.model import WORKLOAD
from rljob_operator.resources import agents, autoscaling, workloads
from rljob_operator.resources.inputs import Inputs, Manifest, job_labels, metadata

GROUP, VERSION = "kueue.x-k8s.io", "v1beta2"
API_VERSION = f"{GROUP}/{VERSION}"
QUEUE_LABEL, PRIORITY_LABEL = f"{GROUP}/queue-name", f"{GROUP}/priority-class"
# By which Kueue finds what a job asked for.
_JOB_UID_LABEL = f"{GROUP}/job-uid"
# Of a pod, what decides about flavors and amounts.
_DECISIVE = ("nodeSelector", "affinity", "tolerations", "runtimeClassName", "priorityClassName", "overhead")
_LENGTH = 10


def workload(inputs: Inputs, *, queue: str, priority_class: str = "", priority: int | None = None) -> Manifest:
    """Return the Workload of a job. `inputs` has no placements: those are the answer. priority: of the class."""
    pod_sets = [_pod_set(inputs, role) for role in suites.roles(inputs.job.spec)]
    spec: Manifest = {"queueName": queue, "active": True, "podSets": pod_sets}
    if priority_class:
        reference = {"group": GROUP, "kind": "WorkloadPriorityClass", "name": priority_class}
        spec |= {"priorityClassRef": reference, "priority": priority or 0}
    name = f"{inputs.job.metadata.name}-{_digest(spec)}"
    own_labels = {**job_labels(inputs.job), _JOB_UID_LABEL: inputs.job.metadata.uid}
    return {
        "apiVersion": API_VERSION,
        "kind": WORKLOAD,
        "metadata": metadata(inputs, name, own_labels),
        "spec": spec,
    }


def _pod_set(inputs: Inputs, role: enums.Role) -> Manifest:
    spec = inputs.job.spec
    counts: Mapping[enums.Role, Manifest] = {
        enums.Role.TRAINER: {"count": spec.trainer.nodes},
        enums.Role.ROLLOUT: _rollouts(inputs),
        enums.Role.VERIFIER: {"count": spec.verifier.replicas},
        enums.Role.COORDINATOR: {"count": 1},
        enums.Role.JUDGE: {"count": 1},
        enums.Role.ENVIRONMENT: {"count": suites.num_environments(spec)},
        enums.Role.AGENTS: {"count": 0 if spec.agents is None else spec.agents.replicas},
    }
    makers: Mapping[enums.Role, Callable[[], Manifest]] = {
        enums.Role.TRAINER: lambda: workloads.trainer_job(inputs, attempt=1),
        enums.Role.ROLLOUT: lambda: workloads.rollout_deployment(inputs, replicas=1),
        enums.Role.VERIFIER: lambda: workloads.verifier_deployment(inputs, replicas=1),
        enums.Role.COORDINATOR: lambda: workloads.coordinator_stateful_set(inputs, replicas=1),
        enums.Role.JUDGE: lambda: workloads.judge_deployment(inputs),
        enums.Role.ENVIRONMENT: lambda: workloads.environment_deployment(inputs, replicas=1),
        enums.Role.AGENTS: lambda: agents.agents_deployment(inputs),
    }
    manifest = makers[role]()["spec"]
    assert isinstance(manifest, Mapping), "a workload has a spec"
    return {"name": str(role), **counts[role], "template": manifest["template"]}


def _rollouts(inputs: Inputs) -> Manifest:
    """Return how many rollouts the queue decides about. Kueue allows one pod set a minimum."""
    scaling = inputs.job.spec.rollout.autoscaling
    if scaling is None:
        return {"count": autoscaling.effective_replicas(inputs.job.spec)}
    return {"count": scaling.max_replicas, "minCount": scaling.min_replicas}


def _digest(spec: Manifest) -> str:
    pod_sets = spec["podSets"]
    assert isinstance(pod_sets, list), "made by workload"
    parts = {**spec, "podSets": [{**pod_set, "template": _decisive(pod_set["template"])} for pod_set in pod_sets]}
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:_LENGTH]


def _decisive(template: Mapping[str, Mapping[str, object]]) -> object:
    """Return what a queue counts and matches of a pod: an image or a variable moves no job to the queue's end."""
    spec = template["spec"]
    amounts = [
        container.get("resources") for kind in ("initContainers", "containers") for container in _items(spec.get(kind))
    ]
    return [amounts, {key: spec[key] for key in _DECISIVE if spec.get(key)}]


def _items(value: object) -> list[Mapping[str, object]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
