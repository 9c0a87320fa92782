"""The pod template of a role: the posture that all roles share, and what manifest and runtime add to it."""

import dataclasses
from collections.abc import Mapping

from rljob_api import enums
from rljob_operator.model import TEMPLATE_HASH, PodPlacement
from rljob_operator.resources import config, container, overlay, storage
from rljob_operator.resources.inputs import (
    Inputs,
    Manifest,
    certificate_secret,
    child_name,
    first_config,
    labels,
    pod_of,
    propagated_annotations,
    propagated_labels,
    selector,
)

# A verifier's is within its own limit of ephemeral storage.
SCRATCH_SIZE, VERIFIER_SCRATCH_SIZE = "16Gi", "1Gi"
_RUNS_MODELS_CODE = (enums.Role.VERIFIER, enums.Role.ENVIRONMENT)
_COPIED = ("nodeSelector", "affinity", "priorityClassName", "resourceClaims", "tolerations")


def pod_template(
    inputs: Inputs,
    role: enums.Role,
    role_spec: container.RoleContainerSpec,
    *,
    own_labels: Mapping[str, str] | None = None,
) -> Manifest:
    """Return the template: ours, with the job's own `pod` in it and its runtime's template over both."""
    spec, scraped = _spec(inputs, role, role_spec), _scraped(inputs, role)
    return with_surroundings(inputs, role, spec, own_labels=own_labels or {}, annotations=scraped)


def with_surroundings(
    inputs: Inputs,
    role: enums.Role,
    spec: Manifest,
    *,
    own_labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """Return a template of the pod that `spec` is. Below its labels are those that the job hands on; where a queue
    admitted the pods to comes last.
    """
    all_annotations = {
        **propagated_annotations(inputs),
        **(annotations or {}),
        TEMPLATE_HASH: config.template_hash(inputs, role),
    }
    all_labels = {**propagated_labels(inputs), **labels(inputs, role), **(own_labels or {})}
    base: Manifest = {"metadata": {"labels": all_labels, "annotations": all_annotations}, "spec": spec}
    whole = overlay.laid_over(base, inputs.template(role), selector=selector(inputs, role))
    placement = inputs.placements.get(role)
    return whole if placement is None else _placed(whole, role, placement)


def _placed(template: Manifest, role: enums.Role, placement: PodPlacement) -> Manifest:
    """Return a template for the place that a queue admitted its pods to, whatever runtime and job say of nodes."""
    metadata, spec = template["metadata"], template["spec"]
    assert isinstance(metadata, dict), "made by pod_template"
    assert isinstance(spec, dict), "made by pod_template"
    tolerations = list(spec.get("tolerations", ()))
    tolerations += [each for each in placement.tolerations if each not in tolerations]
    parts = {
        "nodeSelector": {**spec.get("nodeSelector", {}), **placement.node_labels},
        "tolerations": tolerations,
        "schedulingGates": [{"name": TOPOLOGY_GATE}] if placement.topology else [],
    }
    return {
        "metadata": {
            **metadata,
            "labels": {**placement.labels, **metadata["labels"], **_topology_labels(role, placement)},
            "annotations": {**placement.annotations, **metadata["annotations"], **_topology_annotations(placement)},
        },
        "spec": {**spec, **{key: value for key, value in parts.items() if value}},
    }


def _spec(inputs: Inputs, role: enums.Role, role_spec: container.RoleContainerSpec) -> Manifest:
    pod = pod_of(inputs, role)
    user = pod.model_dump(mode="json", by_alias=True, exclude_none=True)
    volumes = [*user["volumes"], *_common_volumes(inputs, role), *role_spec.volumes]
    mounts = (*_common_mounts(inputs, role), *role_spec.mounts)
    spec: Manifest = {
        "serviceAccountName": child_name(inputs, role),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "shareProcessNamespace": False,
        "securityContext": security(inputs),
        "terminationGracePeriodSeconds": role_spec.grace_s,
        "containers": [container.container(inputs, role, dataclasses.replace(role_spec, mounts=mounts))],
        "volumes": container.merge_by_key(volumes, key="name"),
    }
    lists = {"initContainers": list(role_spec.first), "imagePullSecrets": pull_secrets(inputs)}
    copied = chosen_place(user)
    if role in _RUNS_MODELS_CODE and (name := inputs.job.spec.verifier.isolation.runtime_class):
        copied["runtimeClassName"] = name
    return {**spec, **copied, **{key: value for key, value in lists.items() if value}}


def pull_secrets(inputs: Inputs) -> list[Manifest]:
    return [{"name": name} for name in inputs.settings.image_pull_secrets]


def chosen_place(user: Manifest) -> Manifest:
    """Return where the manifest places a pod, and the devices that it claims. user: its `pod`, as JSON."""
    return {key: user[key] for key in _COPIED if user.get(key)}


def security(inputs: Inputs) -> Manifest:
    """Return who a pod runs as: never root, with the installation's user."""
    return {
        "runAsNonRoot": True,
        **inputs.settings.pod_security_context.model_dump(by_alias=True, exclude_none=True),
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


# Kueue opens the gate of each pod once it has a place for it, and finds pods by these.
TOPOLOGY_GATE = "kueue.x-k8s.io/topology"
POD_SET_LABEL, WORKLOAD_ANNOTATION = "kueue.x-k8s.io/podset", "kueue.x-k8s.io/workload"
UNCONSTRAINED_TOPOLOGY = "kueue.x-k8s.io/podset-unconstrained-topology"


def _topology_labels(role: enums.Role, placement: PodPlacement) -> Mapping[str, str]:
    return {POD_SET_LABEL: str(role)} if placement.topology else {}


def _topology_annotations(placement: PodPlacement) -> Mapping[str, str]:
    if not placement.topology:
        return {}
    return {WORKLOAD_ANNOTATION: placement.topology, UNCONSTRAINED_TOPOLOGY: "true"}


def _common_volumes(inputs: Inputs, role: enums.Role) -> list[Manifest]:
    """Config (the role's own file only), scratch, certificates; whole folders, because subPath mounts never update."""
    config = {"name": f"{inputs.job.metadata.name}-config", "items": [{"key": f"{role}.json", "path": f"{role}.json"}]}
    volumes: list[Manifest] = [
        {"name": "rljob-config", "configMap": config},
        {"name": "rljob-scratch", "emptyDir": {"sizeLimit": _scratch_size(inputs, role)}},
    ]
    if first_config(inputs, role).tls is not None:
        # Group-readable: the key is read by fsGroup, not by the world.
        secret = {"secretName": certificate_secret(inputs.job, role), "defaultMode": 0o440}
        volumes.append({"name": "rljob-tls", "secret": secret})
    if code := _code_map(inputs, role):
        volumes.append({"name": "rljob-code", "configMap": {"name": code}})
    return volumes


def _scratch_size(inputs: Inputs, role: enums.Role) -> str:
    if role is enums.Role.ENVIRONMENT:
        return str(container.environment_scratch_bytes(inputs))
    return VERIFIER_SCRATCH_SIZE if role is enums.Role.VERIFIER else SCRATCH_SIZE


def _common_mounts(inputs: Inputs, role: enums.Role) -> list[Manifest]:
    mounts: list[Manifest] = [
        {"name": "rljob-config", "mountPath": storage.CONFIG_DIR, "readOnly": True},
        {"name": "rljob-scratch", "mountPath": storage.SCRATCH_DIR},
    ]
    if first_config(inputs, role).tls is not None:
        mounts.append({"name": "rljob-tls", "mountPath": storage.TLS_DIR, "readOnly": True})
    if _code_map(inputs, role):
        mounts.append({"name": "rljob-code", "mountPath": storage.CODE_DIR, "readOnly": True})
    return mounts


def _code_map(inputs: Inputs, role: enums.Role) -> str:
    """Return the ConfigMap of the user's file for a role that runs it, "" for one that does not."""
    code = inputs.job.spec.workflow.code
    grades = any(reward.user_code for reward in inputs.configs.verifiers[0].rewards)
    runs = role is enums.Role.ROLLOUT or (role is enums.Role.VERIFIER and grades)
    return (code.config_map or "") if code is not None and runs else ""


def _scraped(inputs: Inputs, role: enums.Role) -> Mapping[str, str]:
    """Return annotations for clusters whose Prometheus finds pods by them."""
    if not inputs.settings.scrape_annotations:
        return {}
    prefix, port = "prometheus.io", str(first_config(inputs, role).health_port)
    return {f"{prefix}/scrape": "true", f"{prefix}/port": port, f"{prefix}/path": "/metrics"}
