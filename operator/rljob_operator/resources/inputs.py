"""What every builder gets, and the metadata that every child has."""

import dataclasses
from collections.abc import Mapping

from rljob_api import names
from rljob_api.job import RLJob
from rljob_api.resolved import ResolvedJob

Manifest = dict[str, object]
MANAGED_BY = "rljob-operator"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """A job, its resolved configs and the pinned image of each role."""

    job: RLJob
    configs: ResolvedJob
    images: Mapping[names.Role, str]


def child_name(inputs: Inputs, role: names.Role, attempt: int | None = None) -> str:
    """Return `<job>-<role>`, with the attempt behind it for a trainer Job."""
    name = f"{inputs.job.metadata.name}-{role}"
    return name if attempt is None else f"{name}-{attempt}"


def selector(inputs: Inputs, role: names.Role) -> dict[str, str]:
    """Return the labels by which pods of a role are found; the uid keeps jobs of one namespace apart."""
    return {"rljob.dev/uid": inputs.job.metadata.uid, "rljob.dev/role": str(role)}


def labels(inputs: Inputs, role: names.Role) -> dict[str, str]:
    """Return the labels of a child."""
    job = inputs.job.metadata.name
    return {
        "app.kubernetes.io/name": "rljob",
        "app.kubernetes.io/instance": job,
        "app.kubernetes.io/component": str(role),
        "app.kubernetes.io/part-of": job,
        "app.kubernetes.io/managed-by": MANAGED_BY,
        "rljob.dev/job": job,
        **selector(inputs, role),
    }


def metadata(inputs: Inputs, name: str, own_labels: Mapping[str, str]) -> Manifest:
    """Return name, namespace, labels and the controller reference to the RLJob."""
    job = inputs.job
    owner = {
        "apiVersion": job.api_version,
        "kind": job.kind,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "name": name,
        "namespace": job.metadata.namespace,
        "labels": dict(own_labels),
        "ownerReferences": [owner],
    }
