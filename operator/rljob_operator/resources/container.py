"""The one container of a role's pod: command, environment, ports, mounts, hooks."""

import copy
import dataclasses
from collections.abc import Sequence

from rljob_api import names, roles
from rljob_operator.resources import folders, keyed, probes
from rljob_operator.resources.inputs import Inputs, Manifest, first_config, pod_of

NAME = "rljob"
SECURITY: Manifest = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What a role adds to the common container: resources, variables, mounts; and how long its stop may take.

    env_from: whole Secrets, below what the manifest's own envFrom says.

    grace_s: when the kubelet kills. affinity: where the role must run, besides what the manifest says. first:
    containers that run to their end before it starts.
    """

    resources: Manifest
    env: Sequence[Manifest] = ()
    env_from: Sequence[Manifest] = ()
    volumes: Sequence[Manifest] = ()
    mounts: Sequence[Manifest] = ()
    stop_s: int
    grace_s: int
    affinity: Manifest | None = None
    first: Sequence[Manifest] = ()


def container(inputs: Inputs, role: names.Role, own: Own) -> Manifest:
    """Return the container `rljob`; the user's env and mounts win over ours but for RLJOB_* and our folders."""
    pod, config = pod_of(inputs, role), first_config(inputs, role)
    user = pod.model_dump(mode="json", by_alias=True, exclude_none=True)
    path = f"{folders.CONFIG}/{role}.json"
    made: Manifest = {
        "name": NAME,
        "image": inputs.images[role],
        "imagePullPolicy": pod.image_pull_policy or inputs.settings.pull_policy,
        "command": [*pod.command_prefix, f"rljob-{role}"],
        "args": ["--config", path],
        "env": keyed.merge([*_defaults(config), *user["env"], _pod_name(), *own.env], key="name"),
        "ports": ports(config),
        "resources": own.resources,
        "volumeMounts": keyed.merge([*user["volumeMounts"], *own.mounts], key="mountPath"),
        "securityContext": copy.deepcopy(SECURITY),
        "terminationMessagePolicy": "File",
        "lifecycle": {"preStop": {"exec": {"command": _stop_command(path, own.stop_s)}}},
        **probes.probes(),
    }
    # Of two sources with a key, Kubernetes takes the later one.
    env_from = [*own.env_from, *user["envFrom"]]
    return {**made, "envFrom": env_from} if env_from else made


def ports(config: roles.CommonConfig) -> list[Manifest]:
    """Return the named ports that a role listens on."""
    listened = {"health": config.health_port}
    if isinstance(config, roles.CoordinatorConfig):
        listened |= {"control": config.control_port, "store": config.store_port}
    if isinstance(config, roles.VerifierConfig):
        listened["verify"] = config.port
    if isinstance(config, roles.TrainerConfig):
        listened["rendezvous"] = config.rendezvous_port
    if isinstance(config, roles.RolloutConfig) and config.publish_port:
        listened["weights"] = config.publish_port
    return [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in listened.items()]


def _defaults(config: roles.CommonConfig) -> list[Manifest]:
    variables = {
        "HOME": folders.SCRATCH,
        "TMPDIR": folders.SCRATCH,
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if config.role in (names.Role.ROLLOUT, names.Role.TRAINER):
        variables["HF_HOME"] = f"{folders.CACHE}/hub"
    return [{"name": name, "value": value} for name, value in variables.items()]


def _pod_name() -> Manifest:
    return {"name": "RLJOB_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}


def _stop_command(path: str, stop_s: int) -> list[str]:
    return ["python", "-m", "rljob_workers.runtime.stop", "--config", path, "--seconds", str(stop_s)]
