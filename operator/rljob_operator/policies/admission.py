"""What this installation does not admit of a legal manifest, and what works on one machine but not in a cluster yet."""

from collections.abc import Iterator, Mapping, Set

from rljob_api import enums
from rljob_api.manifest.job import JobSpec
from rljob_api.manifest.pod import PodSpec
from rljob_api.validation import rules
from rljob_operator.resources import gangs
from rljob_operator.resources.services import MONITORING_GROUP as MONITORING
from rljob_operator.settings import JobSettings


def problems(spec: JobSpec, settings: JobSettings, served: Set[str] = frozenset()) -> Iterator[str]:
    """Yield a sentence for each choice that is not admitted. `served`: API groups and versions that may be used."""
    yield from _certificates(spec, settings)
    if settings.require_network_policy and not spec.security.network_policy:
        yield "spec.security.networkPolicy = false is not allowed in this cluster: leave it true"
    yield from _runtime_classes(spec, settings)
    yield from _devices(spec, settings)
    if spec.observability.pod_monitor and MONITORING not in served:
        yield f"spec.observability.podMonitor = true, but {MONITORING} is not served here: leave it out"
    if missing := gangs.missing_api(spec, settings, served):
        gang = settings.gang_scheduler
        yield (
            f"spec.trainer.nodes = {spec.trainer.nodes}: jobs.gangScheduler {gang} of this installation places them"
            f" together, but {missing} is not served here"
        )
    yield from rules.cluster_problems(spec)


def _runtime_classes(spec: JobSpec, settings: JobSettings) -> Iterator[str]:
    requested = spec.verifier.isolation.runtime_class
    if requested and requested not in settings.runtime_classes:
        allowed = ", ".join(settings.runtime_classes) or "none"
        field = "spec.verifier.isolation.runtimeClassName"
        yield f"{field} = {requested!r} is not allowed in this cluster (allowed: {allowed})"


def _devices(spec: JobSpec, settings: JobSettings) -> Iterator[str]:
    """Refuse to start an image of ours on what it is not for. What one of the user's is for, its programs tell."""
    device, pods = spec.wanted_device, {enums.Role.ROLLOUT: spec.rollout.pod, enums.Role.TRAINER: spec.trainer.pod}
    ours = [role for role, pod in pods.items() if pod.image is None]
    if device is None or device == settings.device or not ours:
        return
    field, value = ("spec.device", spec.device) if spec.device else _gpus(pods)
    images = " and ".join(f"spec.{role}.pod.image" for role in ours)
    if device == "cuda":
        yield (
            f"{field} = {value!r}, but the worker image of this installation is for CPUs: set {images} to one for CUDA,"
            " or install the operator with jobs.device cuda"
        )
    else:
        yield (
            f"{field} = {value!r}, but the worker image of this installation is for CUDA: set {images} to one for CPUs,"
            " or leave spec.device out, and GPUs are asked for"
        )


def _gpus(pods: Mapping[enums.Role, PodSpec]) -> tuple[str, object]:
    """Return the first field that asks for GPUs, and its value."""
    for role, pod in pods.items():
        for name, count in pod.gpus.items():
            return f"spec.{role}.pod.resources.limits.{name}", count
        for claim in pod.resource_claims:
            return f"spec.{role}.pod.resourceClaims", claim.name
    raise AssertionError("a job without spec.device is for GPUs where a pod asks for one")


def _certificates(spec: JobSpec, settings: JobSettings) -> Iterator[str]:
    mode = spec.security.tls
    if mode == "Disabled" and (settings.require_tls or "Disabled" not in settings.tls_modes):
        yield 'spec.security.tls = "Disabled" is not allowed in this cluster: use "Operator"'
    elif mode not in settings.tls_modes:
        yield 'spec.security.tls = "Operator" is not allowed in this cluster: use "Disabled"'
