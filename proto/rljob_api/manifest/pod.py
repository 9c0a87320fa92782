"""`pod` of each role: what differs from job to job. All else of a pod is the template of a runtime
(`manifest.runtime`).
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field

from rljob_api.manifest.base import (
    FREE,
    INT32,
    NAMED,
    Config,
    Label,
    Name,
    Path,
    Problem,
    Quantity,
    Section,
    Text,
    num_bytes,
    rule,
)

RESERVED_PREFIXES = ("rljob.dev/", "app.kubernetes.io/", "kueue.x-k8s.io/", "batch.kubernetes.io/")

# Resources of NVIDIA's device plugin: whole GPUs, shares of one in time, and MIG partitions (nvidia.com/mig-1g.10gb).
GPU, SHARED_GPU, MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-"

LabelKey = Annotated[str, Field(min_length=1, max_length=317)]
KeyName = Annotated[str, Field(min_length=1, max_length=253)]


def is_gpu(resource: str) -> bool:
    """Return whether a resource's name is that of GPUs or parts of them."""
    return resource in (GPU, SHARED_GPU) or resource.startswith(MIG)


class KeyRefSpec(Section):
    """One key of a Secret or ConfigMap."""

    name: KeyName = Field(description="Name of the object.")
    key: KeyName = Field(description="Key inside it.")
    optional: bool = Field(default=False, description="Start without it if it is missing.")


class FieldRefSpec(Section):
    """A field of the pod itself."""

    field_path: Text = Field(description="Path such as status.podIP.")


class ValueFromSpec(Section):
    """Where the value of an environment variable comes from."""

    secret_key_ref: KeyRefSpec | None = Field(default=None, description="A key of a Secret.")
    config_map_key_ref: KeyRefSpec | None = Field(default=None, description="A key of a ConfigMap.")
    field_ref: FieldRefSpec | None = Field(default=None, description="A field of the pod.")


class EnvSpec(Section):
    """One environment variable."""

    name: KeyName = Field(description="Name of the variable.")
    value: Annotated[str, Field(max_length=4096)] | None = Field(default=None, description="Its value.")
    value_from: ValueFromSpec | None = Field(default=None, description="Where its value comes from.")


class ObjectRefSpec(Section):
    """A Secret or ConfigMap."""

    name: KeyName = Field(description="Name of the object.")
    optional: bool = Field(default=False, description="Start without it if it is missing.")


class EnvFromSpec(Section):
    """All keys of an object as variables."""

    prefix: Annotated[str, Field(max_length=63)] | None = Field(default=None, description="Put before each key.")
    secret_ref: ObjectRefSpec | None = Field(default=None, description="The Secret.")
    config_map_ref: ObjectRefSpec | None = Field(default=None, description="The ConfigMap.")


class ResourcesSpec(Section):
    """Compute resources."""

    requests: dict[LabelKey, Quantity] = Field(
        default={},
        max_length=16,
        description="What the scheduler reserves. Where neither a request nor a limit is named: 100m of cpu and 256Mi"
        " of memory for the coordinator, 250m and 1Gi for a rollout or trainer.",
    )
    limits: dict[LabelKey, Quantity] = Field(
        default={}, max_length=16, description="What the container may use at most."
    )


class TolerationSpec(Section):
    """A taint that the pod accepts."""

    key: LabelKey | None = Field(default=None, description="Key of the taint; all keys if unset.")
    operator: Literal["Exists", "Equal"] = Field(default="Equal", description="How key and value are compared.")
    value: Label | None = Field(default=None, description="Value of the taint.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Effect of the taint; all effects if unset."
    )
    toleration_seconds: int | None = Field(
        default=None, ge=0, le=INT32, description="Seconds that a NoExecute taint is accepted for."
    )


class EmptyDirSpec(Section):
    """A directory that lives as long as the pod."""

    medium: Literal["", "Memory"] = Field(default="", description="Disk, or Memory.")
    size_limit: Quantity | None = Field(default=None, description="Largest size in bytes, as a quantity.")


class ClaimSpec(Section):
    """A PersistentVolumeClaim."""

    claim_name: KeyName = Field(description="Name of the claim.")
    read_only: bool = Field(default=False, description="Mount it read-only.")


class ConfigVolumeSpec(Section):
    """Files from a ConfigMap."""

    name: KeyName = Field(description="Name of the ConfigMap.")


class SecretVolumeSpec(Section):
    """Files from a Secret."""

    secret_name: KeyName = Field(description="Name of the Secret.")


class VolumeSpec(Section):
    """One volume: exactly one source."""

    name: Name = Field(description="Name of the volume.")
    empty_dir: EmptyDirSpec | None = Field(default=None, description="A directory that lives as long as the pod.")
    persistent_volume_claim: ClaimSpec | None = Field(default=None, description="A claim.")
    config_map: ConfigVolumeSpec | None = Field(default=None, description="Files from a ConfigMap.")
    secret: SecretVolumeSpec | None = Field(default=None, description="Files from a Secret.")


class VolumeMountSpec(Section):
    """Where a volume appears."""

    name: Name = Field(description="Name of the volume.")
    mount_path: Path = Field(description="Folder in the container.")
    sub_path: Path | None = Field(default=None, description="Folder inside the volume.")
    read_only: bool = Field(default=False, description="Mount it read-only.")


class ResourceClaimSpec(Section):
    """Devices by dynamic resource allocation (resource.k8s.io): exactly one source."""

    name: Name = Field(description="Name of the claim inside the pod.")
    resource_claim_name: KeyName | None = Field(default=None, description="A ResourceClaim that all pods share.")
    resource_claim_template_name: KeyName | None = Field(
        default=None, description="A ResourceClaimTemplate, from which each pod gets a claim of its own."
    )

    @rule()
    def one_source(self) -> Iterator[Problem]:
        """A claim exists already or is made of a template."""
        if (self.resource_claim_name is None) == (self.resource_claim_template_name is None):
            yield "name", self.name, "write one of resourceClaimName and resourceClaimTemplateName"


class PodSpec(Section):
    """What differs from job to job. For everything else: the pod templates of a runtime."""

    image: Annotated[str, Field(min_length=1, max_length=512)] | None = Field(
        default=None, description="Container image. Default: the operator's setting for the role."
    )
    command_prefix: tuple[Text, ...] = Field(
        default=(), max_length=16, description="Put before the role's command, such as a profiler."
    )
    env: tuple[EnvSpec, ...] = Field(
        default=(), max_length=64, json_schema_extra=NAMED, description="Environment variables."
    )
    env_from: tuple[EnvFromSpec, ...] = Field(
        default=(), max_length=8, description="Objects whose keys become variables."
    )
    resources: ResourcesSpec = Field(
        default=ResourcesSpec(),
        description="Compute resources of the container.",
    )
    resource_claims: tuple[ResourceClaimSpec, ...] = Field(
        default=(),
        max_length=8,
        json_schema_extra=NAMED,
        description="Devices by dynamic resource allocation, in place of GPUs among the resources.",
    )
    node_selector: dict[LabelKey, Label] = Field(
        default={}, max_length=16, description="Labels that the node must have."
    )
    tolerations: tuple[TolerationSpec, ...] = Field(
        default=(), max_length=16, description="Taints that the pod accepts."
    )
    affinity: Config | None = Field(
        default=None,
        max_length=3,
        json_schema_extra=FREE,
        description="As core/v1 Affinity; checked by the API server when the pod is made.",
    )
    priority_class_name: KeyName | None = Field(default=None, description="PriorityClass of the pods.")
    volumes: tuple[VolumeSpec, ...] = Field(default=(), max_length=16, json_schema_extra=NAMED, description="Volumes.")
    volume_mounts: tuple[VolumeMountSpec, ...] = Field(
        default=(),
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["mountPath"]},
        description="Where volumes appear.",
    )

    @property
    def gpus(self) -> Mapping[str, int]:
        """GPUs that the pod asks for by a resource's name; a claim's are not counted."""
        quantities = {**self.resources.requests, **self.resources.limits}
        return {name: num_bytes(count) for name, count in quantities.items() if is_gpu(name) and num_bytes(count) > 0}

    @property
    def asks_for_gpus(self) -> bool:
        """Whether GPUs are among what the pod asks for. A claim is taken for one of GPUs."""
        return bool(self.gpus or self.resource_claims)

    @rule()
    def gpus_are_limits(self) -> Iterator[Problem]:
        """GPUs are whole, and a request of them is the limit: the API server takes no pod with another."""
        for kind, quantities in (("requests", self.resources.requests), ("limits", self.resources.limits)):
            for name, count in ((name, count) for name, count in quantities.items() if is_gpu(name)):
                if not count.isdecimal():
                    yield f"resources.{kind}.{name}", count, "it must be a whole number"
        for name, count in ((name, count) for name, count in self.resources.requests.items() if is_gpu(name)):
            limit = self.resources.limits.get(name)
            if limit != count:
                written = f"limits.{name} is {limit}" if limit is not None else "limits has none"
                yield f"resources.requests.{name}", count, f"{written}: write the number in limits alone"

    @rule()
    def partitions_are_not_joined(self) -> Iterator[Problem]:
        """A process sees one MIG partition (NVIDIA, Multi-Instance GPU User Guide, CUDA Device Enumeration)."""
        partitions = {name: count for name, count in self.gpus.items() if name.startswith(MIG)}
        if partitions and sum(self.gpus.values()) > 1:
            name = next(iter(partitions))
            because = "a process sees one MIG partition alone: ask for one, or for whole GPUs"
            yield f"resources.limits.{name}", self.gpus[name], because


def gpu_problems(pod: PodSpec, *, needed: int, because: str) -> Iterator[Problem]:
    """Yield why the GPUs that were written are too few for the processes of a pod. More are allowed, and warned of.

    because: the fields that `needed` follows from.
    """
    written = sum(pod.gpus.values())
    if pod.gpus and written < needed:
        name = next(iter(pod.gpus))
        reason = f"{because} needs {needed} GPUs in each pod: write {needed}, or leave it out"
        yield f"pod.resources.limits.{name}", pod.gpus[name], reason
