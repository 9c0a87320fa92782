"""The volumes that outlive pods, and the directories at which volumes appear in a pod.

    coordinator   state         ledger and weights; no other pod mounts it
    trainer       checkpoints   checkpoints and exports
    rollout       checkpoints   dumps, where many nodes may mount it
    all three     checkpoints   weights too, with weightSync.transport file

Each is a claim of the user's, one that is made for the job, or, in an Ephemeral job, an emptyDir for each pod. With an
object store, `checkpoints` is an emptyDir of the trainer's pod: what is not uploaded yet.
"""

from rljob_api import cluster_placement
from rljob_api.manifest.storage import STATE_SIZE, CheckpointStorageSpec, ClaimSpec, StateStorageSpec
from rljob_operator.resources.inputs import (
    Inputs,
    Manifest,
    job_labels,
    owner_reference,
    propagated_annotations,
    propagated_labels,
)

STATE, CHECKPOINTS = "state", "checkpoints"
STATE_MOUNT: Manifest = {"name": STATE, "mountPath": cluster_placement.STATE_DIR}
CHECKPOINT_MOUNT: Manifest = {"name": CHECKPOINTS, "mountPath": cluster_placement.STORAGE_DIR}


def claims(inputs: Inputs) -> list[Manifest]:
    """Return the claims that are made for the job: none where the user has one, or where state ends with its pod.

    One that is kept is controlled by no job, or it would go with it, and is known by its labels. Its name holds the
    job's uid: a later job of the same name has claims of its own.
    """
    specs = {STATE: _state(inputs), CHECKPOINTS: _checkpoints(inputs)}
    return [_claim(inputs, name, spec) for name, spec in specs.items() if spec is not None and not spec.claim_name]


def coordinator_volumes(inputs: Inputs) -> tuple[Manifest, ...]:
    """Return the volumes that the coordinator writes to."""
    own = _volume(STATE, _claim_name(inputs, STATE, _state(inputs)))
    return (own, checkpoint_volume(inputs)) if _carries_weights(inputs) else (own,)


def coordinator_mounts(inputs: Inputs) -> tuple[Manifest, ...]:
    """Return where they appear."""
    return (STATE_MOUNT, CHECKPOINT_MOUNT) if _carries_weights(inputs) else (STATE_MOUNT,)


def checkpoint_volume(inputs: Inputs) -> Manifest:
    """Return the volume that the trainer writes to."""
    if inputs.job.spec.storage.checkpoint_uri is not None:
        # How large checkpoints are is not known here: requests and limits of ephemeral-storage bound them.
        return {"name": CHECKPOINTS, "emptyDir": {}}
    return _volume(CHECKPOINTS, _claim_name(inputs, CHECKPOINTS, _checkpoints(inputs)))


def rollout_volume(inputs: Inputs) -> Manifest:
    """Return the volume that rollouts write dumps to: the claim only where many nodes may mount it."""
    return checkpoint_volume(inputs) if inputs.job.spec.storage.is_shared else _volume(CHECKPOINTS, None)


def _state(inputs: Inputs) -> StateStorageSpec | None:
    return inputs.job.spec.storage.state_claim


def _checkpoints(inputs: Inputs) -> CheckpointStorageSpec | None:
    return inputs.job.spec.storage.checkpoint_claim


def _carries_weights(inputs: Inputs) -> bool:
    return inputs.job.spec.weight_sync.transport == "file"


def _claim_name(inputs: Inputs, name: str, spec: ClaimSpec | None) -> str | None:
    metadata = inputs.job.metadata
    return None if spec is None else spec.claim_name or f"{metadata.name}-{name}-{metadata.uid[:8]}"


def _claim(inputs: Inputs, name: str, spec: StateStorageSpec | CheckpointStorageSpec) -> Manifest:
    metadata: Manifest = {
        "name": _claim_name(inputs, name, spec),
        "namespace": inputs.job.metadata.namespace,
        "labels": {**propagated_labels(inputs), **job_labels(inputs.job)},
    }
    if annotations := propagated_annotations(inputs):
        metadata["annotations"] = annotations
    if not spec.is_kept:
        metadata["ownerReferences"] = [owner_reference(inputs.job)]
    claim_spec: Manifest = {
        "accessModes": [spec.access_mode],
        "resources": {"requests": {"storage": spec.size or STATE_SIZE}},
    }
    if spec.storage_class_name:
        claim_spec["storageClassName"] = spec.storage_class_name
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": claim_spec}


def _volume(name: str, claim: str | None) -> Manifest:
    if claim is None:
        return {"name": name, "emptyDir": {"sizeLimit": STATE_SIZE}}
    return {"name": name, "persistentVolumeClaim": {"claimName": claim}}


CONFIG_DIR = cluster_placement.CONFIG_DIR
CACHE_DIR = cluster_placement.CACHE_DIR
TLS_DIR = cluster_placement.TLS_DIR
MODEL_DIR = cluster_placement.MODEL_DIR
CODE_DIR = cluster_placement.CODE_DIR
SCRATCH_DIR = "/tmp"
SHARED_MEMORY_DIR = "/dev/shm"
# Room between the end of the stop hook and the kubelet's SIGKILL.
KILL_AFTER_S = 15
