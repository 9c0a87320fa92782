"""What every builder gets, and the metadata that every child has."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rljob_api import devices, enums, process_config
from rljob_api.manifest.job import JobSpec, RLJob
from rljob_api.manifest.pod import PodSpec
from rljob_api.manifest.runtime import JobRuntime
from rljob_api.resolve import ResolvedJob
from rljob_operator.model import PodPlacement
from rljob_operator.settings import JobSettings

Manifest = dict[str, object]
MANAGED_BY = "rljob-operator"
# Of the verifiers' pod settings, what says where a pod runs.
_PLACE = ("image", "node_selector", "affinity", "tolerations", "priority_class_name")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """A job, its resolved configs, the pinned image of each role, the operator's settings, and the job's runtime.

    placements: what the admission to a queue adds to the pods of a role.
    """

    job: RLJob
    configs: ResolvedJob
    images: Mapping[enums.Role, str]
    settings: JobSettings = dataclasses.field(default_factory=JobSettings)
    runtime: JobRuntime | None = None
    placements: Mapping[enums.Role, PodPlacement] = dataclasses.field(default_factory=dict)

    def template(self, role: enums.Role) -> Mapping[str, Any]:
        """Return what the runtime lays over a role's pods, empty for nothing; agents are the user's own."""
        if self.runtime is None or role is enums.Role.AGENTS:
            return {}
        template = getattr(self.runtime.spec.template, str(placed_as(self.job.spec, role)))
        return template or {}


def placed_as(spec: JobSpec, role: enums.Role) -> enums.Role:
    """Return the role whose image, nodes and template of the runtime a role's pods have: its own, or the one that a
    judge and environments are placed with. A judge that serves a model is made as a rollout is.
    """
    if role is enums.Role.JUDGE and spec.judge is not None:
        return enums.Role.ROLLOUT
    return enums.Role.VERIFIER if role in (enums.Role.JUDGE, enums.Role.ENVIRONMENT) else role


def child_name(inputs: Inputs, role: enums.Role, attempt: int | None = None) -> str:
    """Return `<job>-<role>`, with the attempt behind it for a trainer Job."""
    return named(inputs.job.metadata.name, role, attempt)


def named(job: str, role: enums.Role, attempt: int | None = None) -> str:
    """Return the name that `child_name` gives, for a job of which only the name is known."""
    return f"{job}-{role}" if attempt is None else f"{job}-{role}-{attempt}"


def first_config(inputs: Inputs, role: enums.Role) -> process_config.ProcessConfig:
    """Return the config that all pods of a role share, which is one of `suites.programs`."""
    configs = inputs.configs
    if role is enums.Role.JUDGE:
        assert configs.judge is not None, "suites.roles says who has one"
        return configs.judge
    if role is enums.Role.ENVIRONMENT:
        return configs.environments[0]
    return {
        enums.Role.COORDINATOR: configs.coordinator,
        enums.Role.ROLLOUT: configs.rollouts[0],
        enums.Role.VERIFIER: configs.verifiers[0],
        enums.Role.TRAINER: configs.trainer,
    }[role]


def device_of(inputs: Inputs) -> devices.Device:
    """Return what rollouts and trainer compute on."""
    return inputs.configs.trainer.device


def pod_of(inputs: Inputs, role: enums.Role) -> PodSpec:
    spec = inputs.job.spec
    return {
        enums.Role.COORDINATOR: spec.coordinator.pod,
        enums.Role.ROLLOUT: spec.rollout.pod,
        enums.Role.VERIFIER: spec.verifier.pod,
        enums.Role.TRAINER: spec.trainer.pod,
        enums.Role.JUDGE: _judge_pod(spec),
        enums.Role.ENVIRONMENT: _placed_with(spec.verifier.pod),
        enums.Role.AGENTS: PodSpec() if spec.agents is None else spec.agents.pod,
    }[role]


def _judge_pod(spec: JobSpec) -> PodSpec:
    if spec.judge is None:
        return _placed_with(spec.verifier.pod)
    # It fetches and loads a model as a rollout does.
    own = {"resources": spec.judge.resources, "resource_claims": (), "command_prefix": ()}
    return spec.rollout.pod.model_copy(update=own)


def _placed_with(verifier: PodSpec) -> PodSpec:
    """Return the settings of a pod in the place of the verifiers', with none of their variables and volumes."""
    return PodSpec().model_copy(update={name: getattr(verifier, name) for name in _PLACE})


def certificate_secret(job: RLJob, role: enums.Role) -> str:
    """Return the name of the Secret with a role's certificate and key, and the CAs that the job trusts."""
    return f"{job.metadata.name}-tls-{role}"


def selector(inputs: Inputs, role: enums.Role) -> dict[str, str]:
    """Return the labels by which pods of a role are found; the uid keeps jobs of one namespace apart."""
    return {"rljob.dev/uid": inputs.job.metadata.uid, "rljob.dev/role": str(role)}


def labels(inputs: Inputs, role: enums.Role) -> dict[str, str]:
    return {**job_labels(inputs.job), "app.kubernetes.io/component": str(role), **selector(inputs, role)}


def job_labels(job: RLJob) -> dict[str, str]:
    """Return the labels of a child that serves all roles."""
    name = job.metadata.name
    return {
        "app.kubernetes.io/name": "rljob",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/part-of": name,
        "app.kubernetes.io/managed-by": MANAGED_BY,
        "rljob.dev/job": name,
        "rljob.dev/uid": job.metadata.uid,
    }


def propagated_labels(inputs: Inputs) -> dict[str, str]:
    """Return the labels of the job that its children have too: who owns it and who pays. No selector has them."""
    return propagated(inputs.job.metadata.labels, inputs.settings.propagate_labels)


def propagated_annotations(inputs: Inputs) -> dict[str, str]:
    return propagated(inputs.job.metadata.annotations, inputs.settings.propagate_annotations)


def propagated(pairs: Mapping[str, str], keys: Sequence[str]) -> dict[str, str]:
    """Return the pairs of these keys; one that ends with `/` is every key with that prefix."""
    prefixes = tuple(key for key in keys if key.endswith("/"))
    return {key: value for key, value in sorted(pairs.items()) if key in keys or key.startswith(prefixes)}


def metadata(inputs: Inputs, name: str, own_labels: Mapping[str, str]) -> Manifest:
    """Return name, namespace, labels, those of the job among them, and the controller reference to the RLJob."""
    annotations = propagated_annotations(inputs)
    return {
        "name": name,
        "namespace": inputs.job.metadata.namespace,
        "labels": {**propagated_labels(inputs), **own_labels},
        **({"annotations": annotations} if annotations else {}),
        "ownerReferences": [owner_reference(inputs.job)],
    }


def owner_reference(job: RLJob) -> Manifest:
    """Return the reference by which a child is the job's and goes with it."""
    return {
        "apiVersion": job.api_version,
        "kind": job.kind,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
