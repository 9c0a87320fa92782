"""The pod template of a role: the posture that all roles share, and what the manifest may add to it."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence

from rljob_api import enums
from rljob_api.manifest.verifier import runtime_class
from rljob_operator.model import TEMPLATE_HASH
from rljob_operator.resources import config, container, storage
from rljob_operator.resources.inputs import Inputs, Manifest, child_name, first_config, labels, pod_of, selector

USER_ID = 65532
# A verifier's is within its own limit of ephemeral storage.
SCRATCH_SIZE, VERIFIER_SCRATCH_SIZE = "16Gi", "1Gi"
SECURITY: Manifest = {
    "runAsNonRoot": True,
    "runAsUser": USER_ID,
    "runAsGroup": USER_ID,
    "fsGroup": USER_ID,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
_COPIED = ("nodeSelector", "affinity", "priorityClassName", "runtimeClassName", "resourceClaims")


def pod_template(
    inputs: Inputs,
    role: enums.Role,
    role_spec: container.RoleContainerSpec,
    *,
    own_labels: Mapping[str, str] | None = None,
) -> Manifest:
    """Return the template. The user's labels come first and ours last; a referenced PodTemplate lies below both."""
    pod, below = pod_of(inputs, role), inputs.templates.get(role, {})
    base = _section(below, "metadata")
    annotations = {**_section(base, "annotations"), **_scraped(inputs, role), **pod.annotations}
    return {
        "metadata": {
            "labels": {**_section(base, "labels"), **pod.labels, **labels(inputs, role), **(own_labels or {})},
            "annotations": {**annotations, TEMPLATE_HASH: config.template_hash(inputs, role)},
        },
        "spec": _spec(inputs, role, role_spec, _section(below, "spec")),
    }


def _spec(
    inputs: Inputs, role: enums.Role, role_spec: container.RoleContainerSpec, below: Mapping[str, object]
) -> Manifest:
    pod = pod_of(inputs, role)
    user = pod.model_dump(mode="json", by_alias=True, exclude_none=True)
    volumes = [*_items(below, "volumes"), *user["volumes"], *_common_volumes(inputs, role), *role_spec.volumes]
    mounts = (*_common_mounts(inputs, role), *role_spec.mounts)
    role_container = container.container(inputs, role, dataclasses.replace(role_spec, mounts=mounts))
    spec: Manifest = {
        **below,
        "serviceAccountName": pod.service_account_name or child_name(inputs, role),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "shareProcessNamespace": False,
        "securityContext": copy.deepcopy(SECURITY),
        "terminationGracePeriodSeconds": role_spec.grace_s,
        "containers": [_over(_items(below, "containers"), role_container), *_others(below)],
        "volumes": container.merge_by_key(volumes, key="name"),
    }
    lists = {
        "initContainers": [*role_spec.first, *_items(below, "initContainers")],
        "imagePullSecrets": container.merge_by_key(
            [*_items(below, "imagePullSecrets"), *_pull_secrets(inputs), *user["imagePullSecrets"]], key="name"
        ),
        "tolerations": container.distinct([*_items(below, "tolerations"), *user["tolerations"]]),
        "topologySpreadConstraints": _spread(inputs, role, user["topologySpreadConstraints"]),
    }
    copied = {key: user[key] for key in _COPIED if user.get(key)}
    if role is enums.Role.VERIFIER and (name := runtime_class(inputs.job.spec.verifier.isolation)):
        copied["runtimeClassName"] = name
    return {**spec, **copied, **{key: value for key, value in lists.items() if value}}


def _common_volumes(inputs: Inputs, role: enums.Role) -> list[Manifest]:
    """Config (the role's own file only), scratch, certificates; whole folders, because subPath mounts never update."""
    config = {"name": f"{inputs.job.metadata.name}-config", "items": [{"key": f"{role}.json", "path": f"{role}.json"}]}
    scratch = VERIFIER_SCRATCH_SIZE if role is enums.Role.VERIFIER else SCRATCH_SIZE
    volumes: list[Manifest] = [
        {"name": "rljob-config", "configMap": config},
        {"name": "rljob-scratch", "emptyDir": {"sizeLimit": scratch}},
    ]
    if first_config(inputs, role).tls is not None:
        # Group-readable: the key is read by fsGroup, not by the world.
        secret = {"secretName": f"{inputs.job.metadata.name}-tls-{role}", "defaultMode": 0o440}
        volumes.append({"name": "rljob-tls", "secret": secret})
    if code := _code_map(inputs, role):
        volumes.append({"name": "rljob-code", "configMap": {"name": code}})
    return volumes


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


def _pull_secrets(inputs: Inputs) -> list[Manifest]:
    return [{"name": name} for name in inputs.settings.image_pull_secrets]


def _scraped(inputs: Inputs, role: enums.Role) -> Mapping[str, str]:
    """Return annotations for clusters whose Prometheus finds pods by them."""
    if not inputs.settings.scrape_annotations:
        return {}
    prefix, port = "prometheus.io", str(first_config(inputs, role).health_port)
    return {f"{prefix}/scrape": "true", f"{prefix}/port": port, f"{prefix}/path": "/metrics"}


def _spread(inputs: Inputs, role: enums.Role, constraints: Sequence[Manifest]) -> list[Manifest]:
    return [{**each, "labelSelector": {"matchLabels": selector(inputs, role)}} for each in constraints]


def _over(below: Sequence[Mapping[str, object]], ours: Manifest) -> Manifest:
    """Lay our container over the one of the same name in a PodTemplate; its variables, mounts and ports stay."""
    base = next((item for item in below if item.get("name") == container.NAME), {})
    keys = {"env": "name", "volumeMounts": "mountPath", "ports": "containerPort"}
    lists = {
        field: container.merge_by_key([*_items(base, field), *_items(ours, field)], key=key)
        for field, key in keys.items()
    }
    return {**base, **ours, **lists}


def _others(below: Mapping[str, object]) -> list[Mapping[str, object]]:
    return [item for item in _items(below, "containers") if item.get("name") != container.NAME]


def _section(manifest: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = manifest.get(key)
    return value if isinstance(value, Mapping) else {}


def _items(manifest: Mapping[str, object], key: str) -> list[Mapping[str, object]]:
    value = manifest.get(key)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
