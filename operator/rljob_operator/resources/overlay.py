"""A runtime's pod template laid over the one that the operator makes: a strategic merge patch. Pure.

Mappings are merged key by key. Lists of named things are merged by their names, as Kubernetes merges them, and a volume
has the source that the template gives it; tolerations and sources of variables are added, every other list takes the
place of ours. What a template may say at all is `rljob_api.validation.pod_templates`.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from rljob_api.validation import pod_templates
from rljob_operator.resources.inputs import Manifest

# Core/v1's own merge keys, by the name of the list.
MERGE_KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "volumeMounts": "mountPath",
    "hostAliases": "ip",
}
ADDED = ("tolerations", "envFrom")
# What stays of a pod's security context that is replaced.
STAYS = ("runAsNonRoot", "seccompProfile")


def laid_over(base: Manifest, template: Mapping[str, Any], *, selector: Mapping[str, str]) -> Manifest:
    """Return the pod template `base` with what a runtime's template says. selector: labels of the role's pods, which a
    spread counts where it says nothing else.
    """
    if not template:
        return base
    whole = _merged(base, template)
    spec = whole["spec"]
    for constraint in spec.get("topologySpreadConstraints") or ():
        constraint.setdefault("labelSelector", {"matchLabels": dict(selector)})
    if spec.get("hostNetwork"):
        # Else names of Services are asked of the node's resolver, which knows none.
        spec.setdefault("dnsPolicy", "ClusterFirstWithHostNet")
    return whole


def service_account(template: Mapping[str, Any]) -> str:
    """Return the account that a runtime gives a role's pods, empty for the one that the operator makes."""
    return str((template.get("spec") or {}).get("serviceAccountName") or "")


def _merged(ours: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    whole = copy.deepcopy(dict(ours))
    if patch.get(pod_templates.DIRECTIVE) == pod_templates.REPLACE:
        whole = {key: value for key, value in whole.items() if key in STAYS}
    for key, value in patch.items():
        if key == pod_templates.DIRECTIVE:
            continue
        if isinstance(value, Mapping):
            below = whole.get(key)
            whole[key] = _merged(below if isinstance(below, Mapping) else {}, value)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            whole[key] = _merged_list(key, whole.get(key) or [], value)
        else:
            whole[key] = value
    return whole


def _merged_list(name: str, ours: Sequence[Any], patch: Sequence[Any]) -> list[Any]:
    if name in ADDED:
        return [*copy.deepcopy(list(ours)), *(copy.deepcopy(item) for item in patch if item not in ours)]
    key = MERGE_KEYS.get(name)
    if key is None:
        return copy.deepcopy(list(patch))
    by_key = {item[key]: item for item in ours}
    for item in patch:
        lower = by_key.get(item[key], {})
        if name == "volumes" and item.keys() - {key}:
            lower = {field: value for field, value in lower.items() if field in item}
        by_key[item[key]] = _merged(lower, item)
    return list(copy.deepcopy(by_key).values())
