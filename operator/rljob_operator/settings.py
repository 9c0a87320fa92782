"""What the operator was installed with: one frozen object, read once from the file that the chart renders.

Keys of the file are camelCase like those of the chart's values. Without a file every setting has its default.
"""

import pathlib
from collections.abc import Mapping
from typing import Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from rljob_api import enums

Capability = Literal["auto", "true", "false"]
GangScheduler = Literal["none", "native", "volcano", "coscheduling"]


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class Egress(_Frozen):
    """Addresses outside the cluster that pods may reach: a block, what of it stays closed, and TCP ports."""

    cidr: str
    excluded: tuple[str, ...] = Field(default=(), alias="except")
    ports: tuple[int, ...] = (443,)


# Hubs and object stores. Private ranges stay closed: most clusters have the API server, Services and pods there.
PRIVATE = ("10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16")
DEFAULT_EGRESS = (
    Egress(cidr="0.0.0.0/0", excluded=PRIVATE),
    Egress(cidr="::/0", excluded=("fc00::/7", "fe80::/10")),
)
# Where clouds hand out identities: a node's, or those of GKE's and of EKS's accounts.
IDENTITY_ADDRESSES = (
    Egress(cidr="169.254.169.254/32", ports=(80,)),
    Egress(cidr="169.254.169.252/32", ports=(988,)),
    Egress(cidr="169.254.170.23/32", ports=(80,)),
    Egress(cidr="fd00:ec2::23/128", ports=(80,)),
)
# Peers of a NetworkPolicy: the cluster's DNS, and a node-local cache, which is not a pod of the network.
DEFAULT_DNS: tuple[Mapping[str, Any], ...] = (
    {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    },
    {"ipBlock": {"cidr": "169.254.20.10/32"}},
)
SCRAPERS: Mapping[str, str] = {"rljob.dev/metrics": "true"}
OWNER_LABELS = ("team", "owner", "cost-center")
# Whose keys say something to controllers: a copy on a child would be taken for their own word.
_CONTROLLERS = ("rljob.dev", "kubernetes.io", "k8s.io", "x-k8s.io")
_UNPREFIXED = ("pod-template-hash", "controller-revision-hash", "controller-uid", "job-name")


class PodUser(_Frozen):
    """Who a pod runs as; None leaves it to the cluster, which may have a range for each namespace."""

    run_as_user: int | None = Field(default=None, ge=1)
    run_as_group: int | None = Field(default=None, ge=0)
    fs_group: int | None = Field(default=None, ge=0)


# The user that the images name.
IMAGE_USER = PodUser(run_as_user=65532, run_as_group=65532, fs_group=65532)


class JobSettings(_Frozen):
    """Bounds that a job cannot exceed, and what its pods are made with.

    metrics_namespaces: labels of namespaces whose pods may scrape; empty is the label that `SCRAPERS` says.
    dns: peers that may be asked for names, as in NetworkPolicy egress; empty is everyone. runtime_classes: names that
    `verifier.isolation` may ask for. An empty operator_namespace admits no operator to a coordinator's status. device:
    what the images of rollouts and trainers are for. default_runtime: name of the ClusterRLJobRuntime, or with
    watch_namespaces of the RLJobRuntime, of jobs that name none. propagate_labels, propagate_annotations: keys of a
    job that its children have too; one that ends with `/` is every key with that prefix.
    default_queue: of Kueue, for jobs without a label that names one;
    empty is none. gang_scheduler: who places all pods of a trainer at once. gang_scheduler_name: the schedulerName of
    those pods, empty for the one that is usual.
    """

    device: Literal["cpu", "cuda"] = "cpu"
    default_runtime: str = ""
    images: Mapping[enums.Role, str] = Field(default_factory=dict)
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    egress: tuple[Egress, ...] = DEFAULT_EGRESS
    dns: tuple[Mapping[str, Any], ...] = DEFAULT_DNS
    allow_metadata_address: bool = False
    tls_modes: tuple[Literal["Operator", "Disabled"], ...] = ("Operator", "Disabled")
    require_tls: bool = Field(default=False, alias="requireTLS")
    trust_domain: str = "cluster.local"
    require_network_policy: bool = False
    runtime_classes: tuple[str, ...] = ()
    metrics_namespaces: Mapping[str, str] = Field(default_factory=dict)
    metrics_from_everywhere: bool = False
    pod_monitor_labels: Mapping[str, str] = Field(default_factory=dict)
    scrape_annotations: bool = False
    operator_namespace: str = ""
    pod_security_context: PodUser = IMAGE_USER
    default_queue: str = ""
    gang_scheduler: GangScheduler = "none"
    gang_scheduler_name: str = ""
    propagate_labels: tuple[str, ...] = OWNER_LABELS
    propagate_annotations: tuple[str, ...] = ()

    @pydantic.field_validator("propagate_labels", "propagate_annotations")
    @classmethod
    def _not_of_controllers(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        for key in keys:
            prefix, slash, _ = key.partition("/")
            of_controller = any(prefix == domain or prefix.endswith(f".{domain}") for domain in _CONTROLLERS)
            if not key or (slash and of_controller) or key in _UNPREFIXED:
                raise ValueError(f"{key!r} means something to controllers and cannot be propagated")
        return keys


class Integrations(_Frozen):
    """Optional APIs: auto uses one where it is served."""

    keda: Capability = "auto"
    pod_monitor: Capability = "auto"
    kueue: Capability = "auto"


class ClientLimits(_Frozen):
    """Token bucket of requests to the API server."""

    qps: float = 100.0
    burst: int = 200


class LeaderElection(_Frozen):
    """Who of several operators writes: a Lease for each shard of the namespaces, `<name>-shard-<number>`.

    lease_seconds: after which others may take a Lease that was not renewed. renew_seconds: after which its holder stops
    to write unless it was renewed. retry_seconds: between two renewals, or two looks at another's Lease.
    """

    enabled: bool = False
    namespace: str = ""
    name: str = "rljob-operator"
    shards: int = Field(default=1, ge=1, le=64)
    lease_seconds: int = Field(default=10, ge=1)
    renew_seconds: float = Field(default=6.0, gt=0)
    retry_seconds: float = Field(default=2.0, gt=0)

    @pydantic.model_validator(mode="after")
    def _are_terms(self) -> "LeaderElection":
        if not self.retry_seconds < self.renew_seconds < self.lease_seconds:
            raise ValueError(
                f"retrySeconds = {self.retry_seconds}, renewSeconds = {self.renew_seconds}, leaseSeconds ="
                f" {self.lease_seconds}: each must be below the next"
            )
        if self.enabled and not self.namespace:
            raise ValueError("namespace is empty: name the namespace of the Leases")
        if self.shards > 1 and not self.enabled:
            raise ValueError(f"shards = {self.shards}, but enabled is false: shards are divided by election")
        return self


class LogSettings(_Frozen):
    """Least severe log line, and its form."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "text"] = "json"


class Settings(_Frozen):
    """Everything. No watch_namespaces: all of them, or those whose labels match watch_namespace_selector, as `kubectl
    get -l` takes it. job_series: whether metrics have series of each job.
    """

    watch_namespaces: tuple[str, ...] = ()
    watch_namespace_selector: str = ""
    concurrency: int = 8
    health_port: int = 8080
    metrics_port: int = 9090
    job_series: bool = True
    client: ClientLimits = ClientLimits()
    leader_election: LeaderElection = LeaderElection()
    log: LogSettings = LogSettings()
    jobs: JobSettings = JobSettings()
    integrations: Integrations = Integrations()

    @pydantic.model_validator(mode="after")
    def _watches_one_way(self) -> "Settings":
        if self.watch_namespaces and self.watch_namespace_selector:
            raise ValueError(
                f"watchNamespaces = {list(self.watch_namespaces)} and watchNamespaceSelector ="
                f" {self.watch_namespace_selector!r}: name namespaces, or their labels, not both"
            )
        return self


def read(path: pathlib.Path) -> Settings:
    """Return the settings in a JSON file. Raises ValueError that names file, field and value."""
    try:
        return Settings.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ValueError(f"cannot read the settings {path}: {error.strerror}") from error
    except pydantic.ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors())
        raise ValueError(f"{path}: {problems}") from error
