"""The coordinator: a StatefulSet of one pod on its volume."""

from rljob_api import names
from rljob_operator.resources import container, folders, pod_template, resources_of, storage
from rljob_operator.resources.inputs import Inputs, Manifest, child_name, labels, metadata, selector

ROLE = names.Role.COORDINATOR
STOP_S = 30


def stateful_set(inputs: Inputs, *, replicas: int) -> Manifest:
    """Return the StatefulSet; `replicas` is 1, or 0 for a suspended job.

    Volumes outlive the job: they hold its checkpoints.
    """
    made_by_set = bool(storage.claim_templates(inputs))
    own = container.Own(
        resources=resources_of.as_written(inputs, ROLE),
        volumes=() if made_by_set else (storage.volume(inputs),),
        mounts=({"name": storage.VOLUME, "mountPath": folders.STATE},),
        stop_s=STOP_S,
        grace_s=STOP_S + folders.KILL_AFTER_S,
    )
    spec: Manifest = {
        "replicas": replicas,
        "serviceName": child_name(inputs, ROLE),
        "selector": {"matchLabels": selector(inputs, ROLE)},
        "podManagementPolicy": "Parallel",
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
        "template": pod_template.pod_template(inputs, ROLE, own),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(inputs, child_name(inputs, ROLE), labels(inputs, ROLE)),
        "spec": {**spec, "volumeClaimTemplates": storage.claim_templates(inputs)} if made_by_set else spec,
    }
