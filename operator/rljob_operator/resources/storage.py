"""Where a job's state is stored, and the directories at which volumes appear in a pod.

State is on a claim of the user's, on one that the coordinator's StatefulSet creates, or in an emptyDir.
"""

from rljob_api import cluster_placement, enums
from rljob_operator.resources.inputs import Inputs, Manifest, child_name

VOLUME = "state"
EMPTY_DIR_SIZE = "64Gi"


def claim_name(inputs: Inputs) -> str | None:
    """Return the claim that coordinator and trainer mount; None if state lives in emptyDirs."""
    storage = inputs.job.spec.storage
    if storage.claim_name:
        return storage.claim_name
    # The name that a StatefulSet gives the claim of its pod 0.
    return f"{VOLUME}-{child_name(inputs, enums.Role.COORDINATOR)}-0" if storage.size else None


def volume(inputs: Inputs) -> Manifest:
    """Return the volume `state` of a pod."""
    claim = claim_name(inputs)
    if claim is None:
        return {"name": VOLUME, "emptyDir": {"sizeLimit": EMPTY_DIR_SIZE}}
    return {"name": VOLUME, "persistentVolumeClaim": {"claimName": claim}}


def rollout_volume(inputs: Inputs) -> Manifest:
    """Return the volume that rollouts write dumps to: the claim only where it is known to serve many nodes."""
    shared = "ReadWriteMany" in inputs.job.spec.storage.access_modes
    return volume(inputs) if shared else {"name": VOLUME, "emptyDir": {"sizeLimit": EMPTY_DIR_SIZE}}


def claim_templates(inputs: Inputs) -> list[Manifest]:
    """Return the StatefulSet's claim: none unless the manifest asks for a new one."""
    storage = inputs.job.spec.storage
    if storage.claim_name or not storage.size:
        return []
    spec: Manifest = {
        "accessModes": list(storage.access_modes or ("ReadWriteOnce",)),
        "resources": {"requests": {"storage": storage.size}},
    }
    if storage.storage_class_name:
        spec["storageClassName"] = storage.storage_class_name
    return [{"metadata": {"name": VOLUME}, "spec": spec}]


CONFIG_DIR = cluster_placement.CONFIG_DIR
STATE_DIR = cluster_placement.STORAGE_DIR
CACHE_DIR = cluster_placement.CACHE_DIR
TLS_DIR = cluster_placement.TLS_DIR
MODEL_DIR = cluster_placement.MODEL_DIR
CODE_DIR = cluster_placement.CODE_DIR
SCRATCH_DIR = "/tmp"
SHARED_MEMORY_DIR = "/dev/shm"
# Room between the end of the stop hook and the kubelet's SIGKILL.
KILL_AFTER_S = 15
