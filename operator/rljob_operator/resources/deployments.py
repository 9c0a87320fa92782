"""Rollouts and verifiers: a Deployment each, which replaces lost pods by itself."""

from rljob_api import names
from rljob_operator.resources import container, folders, pod_template, preflight, resources_of, storage
from rljob_operator.resources.inputs import Inputs, Manifest, child_name, labels, metadata, pod_of, selector

# A verifier holds nothing that is worth waiting for: its items are graded elsewhere.
VERIFIER_STOP_S, VERIFIER_GRACE_S = 8, 10
CACHE_SIZE = "256Gi"
SHM_SIZE = "1Gi"
# Pods that drain hold their GPUs: a Deployment may not be called stuck before a start could have ended.
_PROGRESS_EXTRA_S = 60


def rollout(inputs: Inputs, *, replicas: int) -> Manifest:
    """Return the rollout Deployment. No surge: there are no spare GPUs."""
    role, spec = names.Role.ROLLOUT, inputs.job.spec
    own = container.Own(
        resources=resources_of.as_written(inputs, role),
        volumes=(storage.rollout_volume(inputs), *model_volumes(inputs, role)),
        mounts=({"name": storage.VOLUME, "mountPath": folders.STATE}, *model_mounts(inputs)),
        env_from=model_secrets(inputs),
        stop_s=spec.rollout.drain_seconds,
        grace_s=spec.rollout.drain_seconds + folders.KILL_AFTER_S,
    )
    deadline = spec.startup_deadline_seconds + spec.rollout.drain_seconds + _PROGRESS_EXTRA_S
    return _deployment(inputs, role, own, replicas=replicas, deadline_s=deadline)


def verifier(inputs: Inputs, *, replicas: int) -> Manifest:
    """Return the verifier Deployment: requests equal to limits, nothing but its config and scratch."""
    own = container.Own(
        resources=resources_of.of_verifier(inputs),
        stop_s=VERIFIER_STOP_S,
        grace_s=VERIFIER_GRACE_S,
        first=(preflight.preflight(inputs),),
    )
    deadline = inputs.job.spec.startup_deadline_seconds + _PROGRESS_EXTRA_S
    return _deployment(inputs, names.Role.VERIFIER, own, replicas=replicas, deadline_s=deadline)


def model_volumes(inputs: Inputs, role: names.Role) -> tuple[Manifest, ...]:
    """Return what a role needs that holds a model: a cache of converted or downloaded ones, shared memory, and the
    claim that the manifest says the model is on.
    """
    shm, claim = pod_of(inputs, role).shm_size or SHM_SIZE, _model_claim(inputs)
    made: tuple[Manifest, ...] = (
        {"name": "rljob-cache", "emptyDir": {"sizeLimit": CACHE_SIZE}},
        {"name": "rljob-shm", "emptyDir": {"medium": "Memory", "sizeLimit": shm}},
    )
    if claim is None:
        return made
    return (*made, {"name": "rljob-model", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})


def model_mounts(inputs: Inputs) -> tuple[Manifest, ...]:
    """Return where they appear."""
    made: tuple[Manifest, ...] = (
        {"name": "rljob-cache", "mountPath": folders.CACHE},
        {"name": "rljob-shm", "mountPath": folders.SHARED_MEMORY},
    )
    if _model_claim(inputs) is None:
        return made
    return (*made, {"name": "rljob-model", "mountPath": folders.MODEL, "readOnly": True})


def model_secrets(inputs: Inputs) -> tuple[Manifest, ...]:
    """Return the Secret with a hub's credentials; who loads the model reads it, and verifiers never do."""
    source = inputs.job.spec.model.source
    return () if source is None or source.secret_name is None else ({"secretRef": {"name": source.secret_name}},)


def _model_claim(inputs: Inputs) -> str | None:
    source = inputs.job.spec.model.source
    return None if source is None else source.claim_name


def _deployment(inputs: Inputs, role: names.Role, own: container.Own, *, replicas: int, deadline_s: int) -> Manifest:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(inputs, child_name(inputs, role), labels(inputs, role)),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": selector(inputs, role)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "25%"}},
            "progressDeadlineSeconds": deadline_s,
            "template": pod_template.pod_template(inputs, role, own),
        },
    }
