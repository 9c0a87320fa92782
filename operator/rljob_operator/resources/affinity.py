"""Where pods must run because of their volume: one claim that a single node may mount keeps its pods together."""

from collections.abc import Mapping

from rljob_api import names
from rljob_operator.resources.inputs import Inputs, Manifest, selector

SAME_NODE = "kubernetes.io/hostname"
_REQUIRED, _PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)


def of_claim(inputs: Inputs) -> Manifest | None:
    """Return what keeps a trainer on its coordinator's node: a demand for a claim that we make without
    ReadWriteMany, a wish for one of the user's, which may be able to do more than the manifest says, and nothing
    without a claim or with ReadWriteMany.
    """
    storage = inputs.job.spec.storage
    term = {"topologyKey": SAME_NODE, "labelSelector": {"matchLabels": selector(inputs, names.Role.COORDINATOR)}}
    if "ReadWriteMany" in storage.access_modes:
        return None
    if storage.claim_name:
        return {"podAffinity": {_PREFERRED: [{"weight": 100, "podAffinityTerm": term}]}}
    if storage.size:
        return {"podAffinity": {_REQUIRED: [term]}}
    return None


def both(ours: Mapping[str, object], users: Mapping[str, object]) -> Manifest:
    """Return one affinity that demands and wishes what either does."""
    merged: Manifest = dict(ours)
    for key, value in users.items():
        held = merged.get(key)
        if isinstance(held, Mapping) and isinstance(value, Mapping):
            merged[key] = both(held, value)
        elif isinstance(held, list) and isinstance(value, list):
            merged[key] = [*held, *value]
        else:
            merged[key] = value
    return merged
