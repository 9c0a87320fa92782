"""The workloads of a job, and their disruption budgets.

The coordinator is a StatefulSet of one pod on its volume. Rollouts, verifiers, judge and environments are a Deployment
each, which replaces lost pods by itself. The trainer is one Indexed Job per attempt: one lost rank fails the attempt,
because a collective cannot heal.
"""

from rljob_api import cluster_placement, devices, enums, suites
from rljob_operator.model import ATTEMPT_LABEL
from rljob_operator.resources import container, gangs, pod, storage
from rljob_operator.resources.inputs import Inputs, Manifest, child_name, device_of, labels, metadata, selector

_COORDINATOR = enums.Role.COORDINATOR
COORDINATOR_STOP_S = 30


def coordinator_stateful_set(inputs: Inputs, *, replicas: int) -> Manifest:
    """Return the StatefulSet; `replicas` is 1, or 0 for a suspended job.

    Its volume is no template of it: a set that is made anew or goes before its job leaves the ledger alone.
    """
    role_spec = container.RoleContainerSpec(
        resources=container.requested_resources(inputs, _COORDINATOR),
        volumes=storage.coordinator_volumes(inputs),
        mounts=storage.coordinator_mounts(inputs),
        stop_s=COORDINATOR_STOP_S,
        grace_s=COORDINATOR_STOP_S + storage.KILL_AFTER_S,
    )
    spec: Manifest = {
        "replicas": replicas,
        "serviceName": child_name(inputs, _COORDINATOR),
        "selector": {"matchLabels": selector(inputs, _COORDINATOR)},
        "podManagementPolicy": "Parallel",
        "template": pod.pod_template(inputs, _COORDINATOR, role_spec),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(inputs, child_name(inputs, _COORDINATOR), labels(inputs, _COORDINATOR)),
        "spec": spec,
    }


# A verifier holds nothing that is worth waiting for: its items are graded elsewhere.
VERIFIER_STOP_S, VERIFIER_GRACE_S = 8, 10
CACHE_SIZE = "256Gi"
# NCCL and vLLM pass messages between the processes of a pod through shared memory.
SHM_GIB_PER_GPU = 1
# Pods that drain hold their GPUs: a Deployment may not be called stuck before a start could have ended.
PROGRESS_EXTRA_S = 60


def rollout_deployment(inputs: Inputs, *, replicas: int) -> Manifest:
    """Return the rollout Deployment. No surge: there are no spare GPUs."""
    role, spec = enums.Role.ROLLOUT, inputs.job.spec
    role_spec = container.RoleContainerSpec(
        resources=container.requested_resources(inputs, role),
        env=(container.pod_address(),),
        volumes=(storage.rollout_volume(inputs), *model_volumes(inputs, role)),
        mounts=(storage.CHECKPOINT_MOUNT, *model_mounts(inputs)),
        env_from=model_secrets(inputs),
        stop_s=spec.rollout.drain_seconds,
        grace_s=spec.rollout.drain_seconds + storage.KILL_AFTER_S,
    )
    deadline = spec.startup_deadline_seconds + spec.rollout.drain_seconds + PROGRESS_EXTRA_S
    return _deployment(inputs, role, role_spec, replicas=replicas, deadline_s=deadline)


def verifier_deployment(inputs: Inputs, *, replicas: int) -> Manifest:
    """Return the verifier Deployment: requests equal to limits, nothing but its config and scratch."""
    role_spec = container.RoleContainerSpec(
        resources=container.verifier_resources(inputs),
        stop_s=VERIFIER_STOP_S,
        grace_s=VERIFIER_GRACE_S,
        first=(container.preflight(inputs),),
    )
    deadline = inputs.job.spec.startup_deadline_seconds + PROGRESS_EXTRA_S
    return _deployment(inputs, enums.Role.VERIFIER, role_spec, replicas=replicas, deadline_s=deadline)


def judge_deployment(inputs: Inputs, *, replicas: int = 1) -> Manifest:
    """Return the judge's Deployment: one pod, whose cache all rollouts share, and which alone has the keys; a model of
    its own it holds as a rollout does.
    """
    role, serves = enums.Role.JUDGE, container.serves_a_model(inputs, enums.Role.JUDGE)
    keys = [options.api_key for options in suites.judges(inputs.job.spec).values() if options.api_key is not None]
    role_spec = container.RoleContainerSpec(
        resources=container.requested_resources(inputs, role),
        env=[container.secret_variable(key) for key in dict.fromkeys(keys)],
        volumes=model_volumes(inputs, role) if serves else (),
        mounts=model_mounts(inputs) if serves else (),
        env_from=model_secrets(inputs) if serves else (),
        stop_s=VERIFIER_STOP_S,
        grace_s=VERIFIER_GRACE_S,
    )
    deadline = inputs.job.spec.startup_deadline_seconds + PROGRESS_EXTRA_S
    return _deployment(inputs, role, role_spec, replicas=replicas, deadline_s=deadline)


def environment_deployment(inputs: Inputs, *, replicas: int) -> Manifest:
    """Return the environments' Deployment: pods with places that rollouts claim one by one, confined as verifiers."""
    role_spec = container.RoleContainerSpec(
        resources=container.environment_resources(inputs), stop_s=VERIFIER_STOP_S, grace_s=VERIFIER_GRACE_S
    )
    deadline = inputs.job.spec.startup_deadline_seconds + PROGRESS_EXTRA_S
    return _deployment(inputs, enums.Role.ENVIRONMENT, role_spec, replicas=replicas, deadline_s=deadline)


def model_volumes(inputs: Inputs, role: enums.Role) -> tuple[Manifest, ...]:
    """Return what a role needs that holds a model: a cache of converted or downloaded ones, shared memory, and the
    claim that the manifest says the model is on.
    """
    claim, processes = _model_claim(inputs), devices.num_gpus(inputs.job.spec, role)
    most = processes if device_of(inputs) == "cuda" else 1
    shm = f"{SHM_GIB_PER_GPU * most}Gi"
    volumes: tuple[Manifest, ...] = (
        {"name": "rljob-cache", "emptyDir": {"sizeLimit": CACHE_SIZE}},
        {"name": "rljob-shm", "emptyDir": {"medium": "Memory", "sizeLimit": shm}},
    )
    if claim is None:
        return volumes
    checkpoints = inputs.job.spec.storage.checkpoint_claim
    # A pod has a claim either way: read-only for one of its volumes, it may be that for the other one too.
    is_written = checkpoints is not None and checkpoints.claim_name == claim
    source: Manifest = {"claimName": claim} if is_written else {"claimName": claim, "readOnly": True}
    return (*volumes, {"name": "rljob-model", "persistentVolumeClaim": source})


def model_mounts(inputs: Inputs) -> tuple[Manifest, ...]:
    mounts: tuple[Manifest, ...] = (
        {"name": "rljob-cache", "mountPath": storage.CACHE_DIR},
        {"name": "rljob-shm", "mountPath": storage.SHARED_MEMORY_DIR},
    )
    if _model_claim(inputs) is None:
        return mounts
    return (*mounts, {"name": "rljob-model", "mountPath": storage.MODEL_DIR, "readOnly": True})


def model_secrets(inputs: Inputs) -> tuple[Manifest, ...]:
    """Return the Secret with a hub's credentials; who loads the model reads it, and verifiers never do."""
    source = inputs.job.spec.model.source
    return () if source is None or source.secret_name is None else ({"secretRef": {"name": source.secret_name}},)


def _model_claim(inputs: Inputs) -> str | None:
    source = inputs.job.spec.model.source
    return None if source is None else source.claim_name


def _deployment(
    inputs: Inputs, role: enums.Role, role_spec: container.RoleContainerSpec, *, replicas: int, deadline_s: int
) -> Manifest:
    template = pod.pod_template(inputs, role, role_spec)
    return deployment(inputs, role, template, replicas=replicas, deadline_s=deadline_s)


def deployment(inputs: Inputs, role: enums.Role, template: Manifest, *, replicas: int, deadline_s: int) -> Manifest:
    """Return the Deployment of a role with that pod template."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(inputs, child_name(inputs, role), labels(inputs, role)),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": selector(inputs, role)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "25%"}},
            "progressDeadlineSeconds": deadline_s,
            "template": template,
        },
    }


_TRAINER = enums.Role.TRAINER
# A stop waits for the end of the step and for the checkpoint.
TRAINER_STOP_S = 600
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def trainer_job(inputs: Inputs, *, attempt: int) -> Manifest:
    """Return the Job of an attempt, numbered from 1. Nothing restarts in it: the next attempt is another Job."""
    nodes = inputs.job.spec.trainer.nodes
    own_labels = {ATTEMPT_LABEL: str(attempt)}
    role_spec = container.RoleContainerSpec(
        resources=container.requested_resources(inputs, _TRAINER),
        env=_variables(inputs),
        volumes=(storage.checkpoint_volume(inputs), *model_volumes(inputs, _TRAINER)),
        mounts=(storage.CHECKPOINT_MOUNT, *model_mounts(inputs)),
        env_from=model_secrets(inputs),
        stop_s=TRAINER_STOP_S,
        grace_s=TRAINER_STOP_S + storage.KILL_AFTER_S,
    )
    template = pod.pod_template(inputs, _TRAINER, role_spec, own_labels=own_labels)
    pod_spec = template["spec"]
    assert isinstance(pod_spec, dict), "made by pod_template"
    pod_spec |= {"restartPolicy": "Never", "subdomain": child_name(inputs, _TRAINER)}
    template = gangs.joined(inputs, template, attempt=attempt)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(inputs, child_name(inputs, _TRAINER, attempt), {**labels(inputs, _TRAINER), **own_labels}),
        "spec": {
            "completionMode": "Indexed",
            "completions": nodes,
            "parallelism": nodes,
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "template": template,
        },
    }


def trainer_template(inputs: Inputs) -> Manifest:
    """Return the pod template of an attempt, the first, without variables: their values are in containers alone."""
    spec = trainer_job(inputs, attempt=1)["spec"]
    assert isinstance(spec, dict), "made by trainer_job"
    template = spec["template"]
    pod_spec = template["spec"]
    lists = {key: [_without_env(each) for each in pod_spec[key]] for key in _CONTAINER_LISTS if key in pod_spec}
    return {**template, "spec": {**pod_spec, **lists}}


_CONTAINER_LISTS = ("initContainers", "containers")


def _without_env(container_spec: Manifest) -> Manifest:
    return {key: value for key, value in container_spec.items() if key != "env"}


def _variables(inputs: Inputs) -> tuple[Manifest, ...]:
    """Return what a rank does not know from its config. Only the label says which attempt it is, so that the template
    of one attempt serves the next.
    """
    attempt = "RLJOB_ATTEMPT"
    return (
        {"name": attempt, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{ATTEMPT_LABEL}']"}}},
        {"name": "RLJOB_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}},
        {"name": "RLJOB_RENDEZVOUS_HOST", "value": cluster_placement.rendezvous_host(inputs.job, f"$({attempt})")},
        *((container.pod_address(),) if inputs.job.spec.trainer_broadcasts_weights else ()),
    )


# An annotation of the job. "true": no budgets. "false": one of the trainer too. Unset: of rollouts alone.
ALLOW = "rljob.dev/allow-disruption"


def disruption_budgets(inputs: Inputs, *, running: bool) -> list[Manifest]:
    """Return the budgets that should exist now.

    An evicted rank stops all ranks after a checkpoint, and the next attempt continues from it: there is nothing that a
    budget would save, and one of a whole attempt would hold up the drain of each of its nodes for as long as the run
    lasts. A job may ask for that, and has it while it runs only. `minAvailable` as a number: Jobs have no scale
    subresource. A pod that is not ready holds up no drain.
    """
    spec, allows = inputs.job.spec, inputs.job.metadata.annotations.get(ALLOW)
    budgets = []
    most_rollouts = spec.rollout.most_replicas
    if allows != "true" and most_rollouts > 1:
        budgets.append(_budget(inputs, enums.Role.ROLLOUT, {"maxUnavailable": "25%"}))
    if allows == "false" and running:
        budgets.append(_budget(inputs, enums.Role.TRAINER, {"minAvailable": spec.trainer.nodes}))
    return budgets


def _budget(inputs: Inputs, role: enums.Role, limits: Manifest) -> Manifest:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(inputs, child_name(inputs, role), labels(inputs, role)),
        "spec": {
            "selector": {"matchLabels": selector(inputs, role)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            **limits,
        },
    }
