"""The one container of a role's pod: command, environment, ports, mounts, hooks."""

import copy
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from rljob_api import devices, enums, process_config
from rljob_api.manifest.base import num_bytes
from rljob_api.manifest.reward_options import SecretKey
from rljob_operator.resources import storage
from rljob_operator.resources.inputs import Inputs, Manifest, device_of, first_config, pod_of

Item = Mapping[str, object]


def merge_by_key(items: Iterable[Item], *, key: str) -> list[dict[str, object]]:
    """Return the items, each key once, at its first place with its last value."""
    merged: dict[object, dict[str, object]] = {}
    for item in items:
        merged[item[key]] = dict(item)
    return list(merged.values())


PERIOD_S = 5
# As long as startupDeadlineSeconds may be. How long a start may take is the operator's to judge, and may be changed
# while pods start, which a pod's probe may not.
START_S = 604_800
LIVENESS_PERIOD_S, LIVENESS_FAILURES = 10, 6


def probes() -> Manifest:
    return {
        "startupProbe": {
            **_get("/healthz"),
            "periodSeconds": PERIOD_S,
            "failureThreshold": START_S // PERIOD_S,
        },
        "livenessProbe": {
            **_get("/healthz"),
            "periodSeconds": LIVENESS_PERIOD_S,
            "failureThreshold": LIVENESS_FAILURES,
        },
        "readinessProbe": {**_get("/readyz"), "periodSeconds": PERIOD_S, "failureThreshold": 1},
    }


def _get(path: str) -> Manifest:
    return {"httpGet": {"path": path, "port": "health"}, "timeoutSeconds": 5}


NAME = "rljob"
SECURITY: Manifest = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RoleContainerSpec:
    """What a role adds to the common container: resources, variables, mounts; and how long its stop may take.

    env_from: whole Secrets, below what the manifest's own envFrom says.

    grace_s: when the kubelet kills. first: containers that run to their end before it starts.
    """

    resources: Manifest
    env: Sequence[Manifest] = ()
    env_from: Sequence[Manifest] = ()
    volumes: Sequence[Manifest] = ()
    mounts: Sequence[Manifest] = ()
    stop_s: int
    grace_s: int
    first: Sequence[Manifest] = ()


def container(inputs: Inputs, role: enums.Role, role_spec: RoleContainerSpec) -> Manifest:
    """Return the container `rljob`; the user's env and mounts win over ours but for RLJOB_* and our folders."""
    pod, config = pod_of(inputs, role), first_config(inputs, role)
    user = pod.model_dump(mode="json", by_alias=True, exclude_none=True)
    path = f"{storage.CONFIG_DIR}/{role}.json"
    result: Manifest = {
        "name": NAME,
        "image": inputs.images[role],
        "imagePullPolicy": inputs.settings.pull_policy,
        "command": [*pod.command_prefix, f"rljob-{role}"],
        "args": ["--config", path],
        "env": merge_by_key([*_defaults(inputs, config), *user["env"], pod_name(), *role_spec.env], key="name"),
        "ports": ports(config),
        "resources": role_spec.resources,
        "volumeMounts": merge_by_key([*user["volumeMounts"], *role_spec.mounts], key="mountPath"),
        "securityContext": copy.deepcopy(SECURITY),
        "terminationMessagePolicy": "File",
        "lifecycle": {"preStop": {"exec": {"command": _stop_command(path, role_spec.stop_s)}}},
        **probes(),
    }
    # Of two sources with a key, Kubernetes takes the later one.
    env_from = [*role_spec.env_from, *user["envFrom"]]
    return {**result, "envFrom": env_from} if env_from else result


def ports(config: process_config.ProcessConfig) -> list[Manifest]:
    listened = {"health": config.health_port}
    if isinstance(config, process_config.CoordinatorConfig):
        listened |= {"control": config.control_port, "store": config.store_port}
    if isinstance(config, process_config.RolloutConfig) and config.peers is not None:
        listened["weights"] = config.peers.port
    if isinstance(config, process_config.RolloutConfig) and config.gateway is not None:
        listened["gateway"] = config.gateway.port
    if isinstance(config, process_config.VerifierConfig | process_config.JudgeConfig):
        listened["verify"] = config.port
    if isinstance(config, process_config.EnvironmentConfig):
        listened["places"] = config.port
    if isinstance(config, process_config.TrainerConfig):
        listened["rendezvous"] = config.rendezvous_port
    if isinstance(config, process_config.TrainerConfig) and config.broadcasts is not None:
        listened["broadcasts"] = config.broadcasts.port
    return [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in listened.items()]


def _defaults(inputs: Inputs, config: process_config.ProcessConfig) -> list[Manifest]:
    variables = {
        "HOME": storage.SCRATCH_DIR,
        "TMPDIR": storage.SCRATCH_DIR,
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if inputs.settings.pod_security_context.run_as_user is None:
        # The image has a name for its own user alone, and libraries ask for one.
        variables["USER"] = "rljob"
    if config.role in (enums.Role.ROLLOUT, enums.Role.TRAINER) or serves_a_model(inputs, config.role):
        variables["HF_HOME"] = f"{storage.CACHE_DIR}/hub"
    return [{"name": name, "value": value} for name, value in variables.items()]


def serves_a_model(inputs: Inputs, role: enums.Role) -> bool:
    """Return whether a role is a judge with a model of its own."""
    return role is enums.Role.JUDGE and inputs.job.spec.judge is not None


def pod_name() -> Manifest:
    """Return the variable with the name of the pod."""
    return {"name": "RLJOB_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}


def pod_address() -> Manifest:
    """Return the variable with the address under which other pods reach this one."""
    return {"name": "RLJOB_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def secret_variable(key: SecretKey) -> Manifest:
    """Return the variable with a judge's key."""
    return {"name": key.variable, "valueFrom": {"secretKeyRef": {"name": key.name, "key": key.key}}}


def _stop_command(path: str, stop_s: int) -> list[str]:
    return ["python", "-m", "rljob_workers.runtime.stop", "--config", path, "--seconds", str(stop_s)]


# What a grading service needs in addition to its executions.
_VERIFIER_BYTES = 512 << 20
_VERIFIER_DISK = "2Gi"


# What a role asks for where its manifest says nothing: enough to begin, and so small that a job of every role fits a
# machine of two cores. A namespace with a quota of cpu or memory refuses pods that ask for nothing.
_REQUESTS = {
    enums.Role.COORDINATOR: {"cpu": "100m", "memory": "256Mi"},
    enums.Role.ROLLOUT: {"cpu": "250m", "memory": "1Gi"},
    enums.Role.TRAINER: {"cpu": "250m", "memory": "1Gi"},
    enums.Role.JUDGE: {"cpu": "100m", "memory": "256Mi"},
    enums.Role.AGENTS: {"cpu": "100m", "memory": "256Mi"},
}


def requested_resources(inputs: Inputs, role: enums.Role) -> Manifest:
    """Return the manifest's resources; of cpu and memory, where it names neither a request nor a limit, the role's own;
    of GPUs, where it asks for none on a job for them, those that the role's processes use.

    A limit alone is the request too, as the API server has it: a default alongside it could be above it.
    """
    pod = pod_of(inputs, role)
    written, like = pod.resources, enums.Role.ROLLOUT if serves_a_model(inputs, role) else role
    defaults = {key: value for key, value in _REQUESTS[like].items() if key not in written.limits}
    resources: Manifest = {
        "requests": {**defaults, **written.requests},
        "limits": {**devices.derived_limits(inputs.job.spec, role, device_of(inputs)), **written.limits},
        "claims": [{"name": claim.name} for claim in pod.resource_claims],
    }
    return {key: value for key, value in resources.items() if value}


def verifier_resources(inputs: Inputs) -> Manifest:
    """Return requests equal to limits for cpu, memory and ephemeral-storage: no grading takes another pod's share.

    Memory without a word of the manifest's: every execution at its limit at once, and the service itself.
    """
    spec, config = inputs.job.spec.verifier, inputs.configs.verifiers[0]
    memory = _VERIFIER_BYTES + config.num_slots * num_bytes(spec.memory)
    written = {**spec.pod.resources.requests, **spec.pod.resources.limits}
    limits = {"cpu": "1", "memory": str(memory), "ephemeral-storage": _VERIFIER_DISK, **written}
    return {"requests": dict(limits), "limits": limits}


# What the service of an environment, and each place beside its command, need.
_ENVIRONMENT_BYTES, _PLACE_BYTES = 256 << 20, 64 << 20
_ENVIRONMENT_DISK = 256 << 20


def environment_scratch_bytes(inputs: Inputs) -> int:
    """Return the size of the folder of all places, each full."""
    config = inputs.configs.environments[0]
    return _ENVIRONMENT_DISK + config.num_places * config.scratch_bytes


def environment_resources(inputs: Inputs) -> Manifest:
    """Return requests equal to limits, as a verifier's: every place with a command at its limits at once, unless the
    manifest says otherwise.
    """
    spec, config = inputs.job.spec.environment, inputs.configs.environments[0]
    assert spec is not None, "environments are placed where a job has them"
    memory = _ENVIRONMENT_BYTES + config.num_places * (_PLACE_BYTES + config.memory_bytes)
    disk = _ENVIRONMENT_DISK + environment_scratch_bytes(inputs)
    written = {**spec.resources.requests, **spec.resources.limits}
    limits = {"cpu": "1", "memory": str(memory), "ephemeral-storage": str(disk), **written}
    return {"requests": dict(limits), "limits": limits}


PREFLIGHT = "preflight"
_VERIFIER = enums.Role.VERIFIER
_SANDBOX = ("landlock", "seccomp", "confined")
_POSTURE = ("no_new_privileges", "capabilities", "read_only_root", "no_token")


def preflight(inputs: Inputs) -> Manifest:
    """Return the container; with the service's image, security context and resources, and none of its files."""
    spec, settings = inputs.job.spec, inputs.settings
    arguments = [f"--require={','.join(required_layers(inputs))}"]
    if name := spec.verifier.isolation.runtime_class:
        arguments.append(f"--runtime-class={name}")
    if spec.security.network_policy:
        arguments.append("--closed-network")
    return {
        "name": PREFLIGHT,
        "image": inputs.images[_VERIFIER],
        "imagePullPolicy": settings.pull_policy,
        "command": ["python", "-m", "rljob_workers.verifier.preflight"],
        "args": arguments,
        "env": [{"name": "HOME", "value": storage.SCRATCH_DIR}, {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}],
        "resources": verifier_resources(inputs),
        "securityContext": copy.deepcopy(SECURITY),
        # Its report is written to the file; of one that breaks before it, the end of its log says why.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "rljob-scratch", "mountPath": storage.SCRATCH_DIR}],
    }


def required_layers(inputs: Inputs) -> tuple[str, ...]:
    """Return the layers without which no pod becomes ready: none where the manifest asks for no isolation.

    The network counts where the installation demands policies; elsewhere it is reported, since many small clusters
    enforce none. Of a RuntimeClass the layer `confined` is all that can be demanded from inside: its kernel may have no
    Landlock, and gVisor takes no seccomp profile of a pod unless its runtime is asked to (`oci-seccomp`). That the pod
    has the class is read in the pod itself (`policies/isolation.py`).
    """
    isolation = inputs.job.spec.verifier.isolation
    if isolation.type == "None":
        return ()
    layers = (*_POSTURE, *(("confined",) if isolation.runtime_class else _SANDBOX))
    return (*layers, "network") if inputs.settings.require_network_policy else layers
