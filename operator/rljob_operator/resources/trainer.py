"""The trainer: one Indexed Job per attempt. One lost rank fails the attempt, because a collective cannot heal."""

from rljob_api import cluster_placement, names
from rljob_operator.resources import affinity, container, deployments, folders, pod_template, resources_of, storage
from rljob_operator.resources.inputs import Inputs, Manifest, child_name, labels, metadata

ROLE = names.Role.TRAINER
# A stop waits for the end of the step and for the checkpoint.
STOP_S = 600
ATTEMPT_LABEL = "rljob.dev/attempt"
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def job(inputs: Inputs, *, attempt: int) -> Manifest:
    """Return the Job of an attempt, numbered from 1. Nothing restarts in it: the next attempt is another Job."""
    nodes = inputs.job.spec.trainer.nodes
    own_labels = {ATTEMPT_LABEL: str(attempt)}
    own = container.Own(
        resources=resources_of.as_written(inputs, ROLE),
        env=_variables(inputs, attempt),
        volumes=(storage.volume(inputs), *deployments.model_volumes(inputs, ROLE)),
        mounts=({"name": storage.VOLUME, "mountPath": folders.STATE}, *deployments.model_mounts(inputs)),
        env_from=deployments.model_secrets(inputs),
        stop_s=STOP_S,
        grace_s=STOP_S + folders.KILL_AFTER_S,
        affinity=affinity.of_claim(inputs),
    )
    template = pod_template.pod_template(inputs, ROLE, own, own_labels=own_labels)
    pod_spec = template["spec"]
    assert isinstance(pod_spec, dict), "made by pod_template"
    pod_spec |= {"restartPolicy": "Never", "subdomain": child_name(inputs, ROLE)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(inputs, child_name(inputs, ROLE, attempt), {**labels(inputs, ROLE), **own_labels}),
        "spec": {
            "completionMode": "Indexed",
            "completions": nodes,
            "parallelism": nodes,
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "template": template,
        },
    }


def _variables(inputs: Inputs, attempt: int) -> tuple[Manifest, ...]:
    return (
        {"name": "RLJOB_ATTEMPT", "value": str(attempt)},
        {"name": "RLJOB_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}},
        {"name": "RLJOB_RENDEZVOUS_HOST", "value": cluster_placement.rendezvous_host(inputs.job, attempt)},
    )
