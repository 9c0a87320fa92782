"""What every builder gets, and the metadata that every child has."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from rljob_api import names, roles
from rljob_api.job import RLJob
from rljob_api.resolved import ResolvedJob
from rljob_api.spec.pod import PodSpec

Manifest = dict[str, object]
MANAGED_BY = "rljob-operator"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Egress:
    """Addresses outside the cluster that pods may reach: a block, what of it stays closed, and TCP ports."""

    cidr: str
    excluded: tuple[str, ...] = ()
    ports: tuple[int, ...] = (443,)


# Hubs and object stores. Link-local stays closed: it is where clouds hand out a node's identity.
DEFAULT_EGRESS = (Egress(cidr="0.0.0.0/0", excluded=("169.254.0.0/16",)), Egress(cidr="::/0", excluded=("fe80::/10",)))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the operator was installed with. `metrics_namespaces` are labels of namespaces whose pods may scrape.

    An empty `operator_namespace` admits no operator to a coordinator's status.
    """

    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    egress: tuple[Egress, ...] = DEFAULT_EGRESS
    metrics_namespaces: Mapping[str, str] = dataclasses.field(default_factory=dict)
    operator_namespace: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """A job, its resolved configs, the pinned image of each role and the operator's settings.

    `templates` holds, for each role with a podTemplateRef, the `template` of that core/v1 PodTemplate.
    """

    job: RLJob
    configs: ResolvedJob
    images: Mapping[names.Role, str]
    settings: Settings = Settings()
    templates: Mapping[names.Role, Mapping[str, object]] = dataclasses.field(default_factory=dict)


def child_name(inputs: Inputs, role: names.Role, attempt: int | None = None) -> str:
    """Return `<job>-<role>`, with the attempt behind it for a trainer Job."""
    name = f"{inputs.job.metadata.name}-{role}"
    return name if attempt is None else f"{name}-{attempt}"


def first_config(inputs: Inputs, role: names.Role) -> roles.CommonConfig:
    """Return the config that all pods of a role share."""
    configs = inputs.configs
    return {
        names.Role.COORDINATOR: configs.coordinator,
        names.Role.ROLLOUT: configs.rollouts[0],
        names.Role.VERIFIER: configs.verifiers[0],
        names.Role.TRAINER: configs.trainer,
    }[role]


def pod_of(inputs: Inputs, role: names.Role) -> PodSpec:
    """Return the pod settings that a manifest gives a role."""
    spec = inputs.job.spec
    return {
        names.Role.COORDINATOR: spec.coordinator.pod,
        names.Role.ROLLOUT: spec.rollout.pod,
        names.Role.VERIFIER: spec.verifier.pod,
        names.Role.TRAINER: spec.trainer.pod,
    }[role]


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
