"""What a runtime's pod template may say of a role's pods. Pure; the operator lays it over the pods that it makes.

Refused by path is what isolation, identity and the life of a process rest on, and what a job's own `pod` decides, which
`spec.defaults` and `spec.fixed` of a runtime may set. Verifiers run what a model wrote: their pods take placement and
the registry's credentials, and nothing that a program could reach.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rljob_api import cluster_placement
from rljob_api.manifest.pod import RESERVED_PREFIXES
from rljob_api.validation import messages

CONTAINER, PREFLIGHT = "rljob", "preflight"
# Volumes of ours whose source or size a platform may choose: keys that may be written, empty for all.
OPEN_VOLUMES: Mapping[str, tuple[str, ...]] = {
    "rljob-cache": (),
    "rljob-shm": ("emptyDir",),
    "rljob-scratch": ("emptyDir",),
}
OUR_VOLUMES = ("state", "checkpoints")
# What no other container may look into: keys and settings of the role.
PRIVATE_VOLUMES = ("rljob-tls", "rljob-config")
OUR_FOLDERS = (
    cluster_placement.CONFIG_DIR,
    cluster_placement.TLS_DIR,
    cluster_placement.CODE_DIR,
    cluster_placement.MODEL_DIR,
    cluster_placement.STATE_DIR,
    cluster_placement.STORAGE_DIR,
    cluster_placement.CACHE_DIR,
    cluster_placement.SCRATCH_DIR,
    "/dev/shm",
)
CAPABILITIES = ("IPC_LOCK", "SYS_NICE")
# Takes a pod's user and groups away, so that the cluster chooses them.
SECURITY, DIRECTIVE, REPLACE = "spec.securityContext", "$patch", "replace"
COMPUTING = ("rollout", "trainer")

Problem = tuple[str, object, str]
Node = Mapping[str, Any]

_PLACEMENT = (
    "nodeSelector", "tolerations", "affinity", "topologySpreadConstraints", "schedulerName", "priorityClassName",
    "preemptionPolicy", "schedulingGates", "imagePullSecrets", "securityContext", "containers",
)  # fmt: skip
_TRUSTED = (
    *_PLACEMENT, "runtimeClassName", "serviceAccountName", "dnsPolicy", "dnsConfig", "hostAliases", "hostUsers",
    "volumes", "initContainers",
)  # fmt: skip
_HOST = ("hostNetwork", "hostIPC")
_BY_THE_JOB = "set spec.defaults.{role}.pod.{key} or spec.fixed.{role}.pod.{key}"
_REASONS = {
    "resourceClaims": _BY_THE_JOB.format(role="<role>", key="resourceClaims"),
    "automountServiceAccountToken": "no process of a job speaks to the API server",
    "enableServiceLinks": "the operator sets it to false",
    "shareProcessNamespace": "containers of a pod may not look into each other's processes",
    "hostPID": "a role may not look into processes of its node",
    "terminationGracePeriodSeconds": "it follows from how long a role takes to stop",
    "activeDeadlineSeconds": "set spec.defaults.activeDeadlineSeconds: a run has one, not its pods",
    "restartPolicy": "the operator decides what is started again",
    "hostname": "roles find each other by name",
    "subdomain": "roles find each other by name",
    "setHostnameAsFQDN": "roles find each other by name",
    "nodeName": "use nodeSelector or affinity",
    "ephemeralContainers": "they are added to pods that run",
}
_OF_VERIFIERS = "a verifier runs what a model wrote, and its pod takes placement alone"
_CONTAINER_REASONS = {
    "image": _BY_THE_JOB,
    "resources": _BY_THE_JOB,
    "command": "it is the role's program; for a prefix " + _BY_THE_JOB.replace("{key}", "commandPrefix"),
    "args": "they are the role's own",
    "ports": "they are the role's own",
    "workingDir": "it is the role's own",
    "lifecycle": "the role's stop saves what it has",
    "livenessProbe": "the operator decides by the role's own probes",
    "readinessProbe": "the operator decides by the role's own probes",
    "startupProbe": "the operator decides by the role's own probes",
    "terminationMessagePath": "the operator reads it",
    "terminationMessagePolicy": "the operator reads it",
    "restartPolicy": "the operator decides what is started again",
}
_CONTAINER = ("name", "env", "envFrom", "volumeMounts", "securityContext", "imagePullPolicy")
_SIDECAR = "write it among initContainers with restartPolicy Always: it then ends with the role"


def problems(role: str, template: Node) -> list[str]:
    """Return `<path> is <value>, but <reason>` for everything that a template of a role may not say."""
    return [f"{path} is {messages.show(value)}, but {because}" for path, value, because in _problems(role, template)]


def _problems(role: str, template: Node) -> Iterator[Problem]:
    yield from _unknown(template, ("metadata", "spec"), "")
    yield from _directives(template, "")
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    for path, node in (("metadata", metadata), ("spec", spec)):
        if not isinstance(node, Mapping):
            yield path, node, "it must be a mapping"
            return
    yield from _unknown(metadata, ("labels", "annotations"), "metadata.")
    for kind in ("labels", "annotations"):
        for key in metadata.get(kind) or {}:
            if key.startswith(RESERVED_PREFIXES):
                yield f"metadata.{kind}.{key}", metadata[kind][key], f"the prefix {key.split('/')[0]}/ is reserved"
    yield from _pod(role, spec)


def _pod(role: str, spec: Node) -> Iterator[Problem]:
    allowed = _PLACEMENT if role == "verifier" else _TRUSTED
    for key, value in spec.items():
        if key in _HOST:
            if role not in COMPUTING and value:
                yield f"spec.{key}", value, "rollouts and trainer alone may use a network or memory of their node"
        elif key not in allowed:
            because = _REASONS.get(key, "a template has no such field")
            if role == "verifier" and key in _TRUSTED:
                because = _OF_VERIFIERS
            yield f"spec.{key}", value, because.replace("<role>", role)
    shapes = [key for key in ("containers", "initContainers", "volumes") if not _are_named(spec.get(key))]
    for key in shapes:
        yield f"spec.{key}", spec[key], "it must be a list of mappings, each with a name of its own"
    if shapes:
        return
    yield from _security(role, spec.get("securityContext"), "spec.securityContext")
    for index, container in enumerate(spec.get("containers") or ()):
        path = f"spec.containers[{index}]"
        if container["name"] != CONTAINER:
            yield f"{path}.name", container["name"], f"{CONTAINER} is the role's container; for a sidecar: {_SIDECAR}"
        else:
            yield from _role_container(role, container, path)
    if role == "verifier":
        return
    for index, container in enumerate(spec.get("initContainers") or ()):
        yield from _other_container(role, container, f"spec.initContainers[{index}]")
    for index, volume in enumerate(spec.get("volumes") or ()):
        yield from _volume(volume, f"spec.volumes[{index}]")


def _role_container(role: str, container: Node, path: str) -> Iterator[Problem]:
    allowed = ("name", "imagePullPolicy") if role == "verifier" else _CONTAINER
    for key, value in container.items():
        if key not in allowed:
            because = _CONTAINER_REASONS.get(key, "the role's container has no such field")
            if role == "verifier" and key in _CONTAINER:
                because = _OF_VERIFIERS
            yield f"{path}.{key}", value, because.format(role=role, key=key)
    if role == "verifier":
        return
    for key in ("env", "volumeMounts"):
        if not _are_named(container.get(key), by="mountPath" if key == "volumeMounts" else "name"):
            yield f"{path}.{key}", container[key], "it must be a list of mappings, each with a key of its own"
            return
    for index, variable in enumerate(container.get("env") or ()):
        if variable["name"].startswith("RLJOB_"):
            yield f"{path}.env[{index}].name", variable["name"], "variables of that prefix are the operator's"
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        where = str(mount["mountPath"]).rstrip("/") or "/"
        if ours := next((folder for folder in OUR_FOLDERS if _overlap(where, folder)), ""):
            yield f"{path}.volumeMounts[{index}].mountPath", mount["mountPath"], f"{ours} is the role's own"
    yield from _security(role, container.get("securityContext"), f"{path}.securityContext")


def _other_container(role: str, container: Node, path: str) -> Iterator[Problem]:
    if container["name"] in (CONTAINER, PREFLIGHT):
        yield f"{path}.name", container["name"], "that name is the operator's: use another"
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        name = mount.get("name") if isinstance(mount, Mapping) else mount
        if name in PRIVATE_VOLUMES:
            yield f"{path}.volumeMounts[{index}].name", name, "keys and settings of a role are for its own container"
    yield from _security(role, container.get("securityContext"), f"{path}.securityContext")


def _volume(volume: Node, path: str) -> Iterator[Problem]:
    name = volume["name"]
    if name in OPEN_VOLUMES:
        keys = OPEN_VOLUMES[name]
        for key in volume:
            if keys and key not in (*keys, "name"):
                yield f"{path}.{key}", volume[key], f"{name} is an {keys[0]}: only its size can be chosen"
    elif name.startswith("rljob-") or name in OUR_VOLUMES:
        yield f"{path}.name", name, "that volume is the operator's: use another name"


def _security(role: str, context: object, path: str) -> Iterator[Problem]:
    """Refuse what would undo the restricted Pod Security Standard, but for capabilities that computing needs."""
    if context is None:
        return
    if not isinstance(context, Mapping):
        yield path, context, "it must be a mapping"
        return
    for key in ("runAsUser", "runAsGroup", "fsGroup"):
        if context.get(key) == 0 and not isinstance(context.get(key), bool):
            yield (
                f"{path}.{key}",
                0,
                f"processes of a job never run as root; {DIRECTIVE}: {REPLACE} leaves it to the cluster",
            )
    never = {
        "privileged": (True, "a container of a job is never privileged"),
        "allowPrivilegeEscalation": (True, "a container of a job never gains privileges"),
        "runAsNonRoot": (False, "processes of a job never run as root"),
        "readOnlyRootFilesystem": (False, "mount a volume at what has to be written"),
    }
    for key, (value, because) in never.items():
        if context.get(key) is value:
            yield f"{path}.{key}", context[key], because
    for key in ("procMount", "windowsOptions"):
        if context.get(key) is not None:
            yield f"{path}.{key}", context[key], "pods of a job have no such setting"
    for key in ("seccompProfile", "appArmorProfile"):
        profile = context.get(key)
        if key in context and (not isinstance(profile, Mapping) or profile.get("type", "Unconfined") == "Unconfined"):
            yield f"{path}.{key}", profile, "use RuntimeDefault or a Localhost profile"
    if role == "verifier":
        other = [
            key for key in context if key not in ("runAsUser", "runAsGroup", "fsGroup", "supplementalGroups", DIRECTIVE)
        ]
        yield from ((f"{path}.{key}", context[key], _OF_VERIFIERS) for key in other)
    yield from _capabilities(role, context.get("capabilities", {}), f"{path}.capabilities")


def _capabilities(role: str, capabilities: object, path: str) -> Iterator[Problem]:
    if not isinstance(capabilities, Mapping):
        yield path, capabilities, "it must be a mapping"
        return
    if capabilities.get("drop", ["ALL"]) != ["ALL"]:
        yield f"{path}.drop", capabilities["drop"], "all are dropped but those of add"
    for name in capabilities.get("add") or ():
        if role not in COMPUTING or name not in CAPABILITIES:
            because = f"rollouts and trainer may add {' and '.join(CAPABILITIES)}, and no role another"
            yield f"{path}.add", name, because


def _directives(node: object, path: str) -> Iterator[Problem]:
    """Refuse nulls, which clients drop on their way to the API server, and directives of patches but for one."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            if value is None:
                yield f"{path}{key}", None, "kubectl apply drops it: leave it out"
            elif str(key).startswith("$") and (f"{path}{key}", value) != (f"{SECURITY}.{DIRECTIVE}", REPLACE):
                yield f"{path}{key}", value, f"{DIRECTIVE}: {REPLACE} in {SECURITY} is the one directive that is read"
            yield from _directives(value, f"{path}{key}.")
    elif isinstance(node, Sequence) and not isinstance(node, str):
        for index, item in enumerate(node):
            yield from _directives(item, f"{path.removesuffix('.')}[{index}].")


def _unknown(node: Node, keys: Sequence[str], path: str) -> Iterator[Problem]:
    for key in node:
        if key not in keys and not str(key).startswith("$"):
            yield f"{path}{key}", node[key], f"a template has {' and '.join(keys)} here"


def _are_named(items: object, by: str = "name") -> bool:
    if items is None:
        return True
    if not isinstance(items, Sequence) or isinstance(items, str):
        return False
    keys = [item.get(by) if isinstance(item, Mapping) else None for item in items]
    return all(isinstance(key, str) and key for key in keys) and len(set(keys)) == len(keys)


def _overlap(one_path: str, folder: str) -> bool:
    return one_path == folder or one_path.startswith(f"{folder}/") or folder.startswith(f"{one_path.rstrip('/')}/")


def differences(pod: Node, template: Node) -> Iterator[tuple[str, object]]:
    """Yield path and value of what a job's `pod` sets and its runtime's template sets to something else."""
    spec = template.get("spec") or {}
    container: Node = next((each for each in spec.get("containers") or () if each.get("name") == CONTAINER), {})
    for key, value in (pod.get("nodeSelector") or {}).items():
        if (spec.get("nodeSelector") or {}).get(key, value) != value:
            yield f"nodeSelector.{key}", value
    name = pod.get("priorityClassName")
    if name is not None and spec.get("priorityClassName", name) != name:
        yield "priorityClassName", name
    if pod.get("affinity") and spec.get("affinity"):
        yield "affinity", pod["affinity"]
    for key, by, theirs in (
        ("env", "name", container.get("env")),
        ("volumes", "name", spec.get("volumes")),
        ("volumeMounts", "mountPath", container.get("volumeMounts")),
    ):
        taken = {item[by]: item for item in theirs or ()}
        for item in pod.get(key) or ():
            if taken.get(item[by], item) != item:
                # Its name says enough, and the value of a variable may be a secret.
                yield f"{key}[{item[by]}]", item[by]
