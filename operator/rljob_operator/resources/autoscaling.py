"""Scaling of rollouts: an HPA or a KEDA ScaledObject on the RLJob's own scale subresource.

Both act on `rljob_rollout_pressure_ratio`, rollout capacity needed over capacity present, target 1. The operator
writes no replica count itself.
"""

from collections.abc import Set

from rljob_api import enums
from rljob_api.manifest.job import JobSpec
from rljob_api.manifest.rollout import AutoscalingSpec
from rljob_operator.resources.inputs import Inputs, Manifest, child_name, first_config, labels, metadata

METRIC = "rljob_rollout_pressure_ratio"
TARGET = "1"
EXTERNAL_METRICS, KEDA = "external.metrics.k8s.io", "keda.sh"
# What has to be served for each provider.
NEEDS = {"HPA": EXTERNAL_METRICS, "KEDA": KEDA}
KINDS = {"HPA": "HorizontalPodAutoscaler", "KEDA": "ScaledObject"}
_UP_STABILIZATION_S = 60
_POLL_S = 15


def autoscaler(inputs: Inputs, served: Set[str]) -> Manifest | None:
    """Return the object that should exist while the job is active: none without the API groups that it needs."""
    autoscaling = inputs.job.spec.rollout.autoscaling
    if autoscaling is None or missing_api(inputs.job.spec, served) is not None:
        return None
    return _horizontal(inputs, autoscaling) if autoscaling.provider == "HPA" else _scaled_object(inputs, autoscaling)


def missing_api(spec: JobSpec, served: Set[str]) -> str | None:
    """Return the API group that the job's provider needs and the cluster does not serve; None if nothing is missing."""
    autoscaling = spec.rollout.autoscaling
    if autoscaling is None or NEEDS[autoscaling.provider] in served:
        return None
    return NEEDS[autoscaling.provider]


def effective_replicas(spec: JobSpec) -> int:
    """Return the replicas that a job has: those of the manifest, within the bounds of its autoscaling.

    Clamped and not refused: a refusal would lock out anyone who lowers the maximum.
    """
    bounds = spec.rollout.autoscaling
    if bounds is None:
        return spec.rollout.replicas
    return max(bounds.min_replicas, min(spec.rollout.replicas, bounds.max_replicas))


def _horizontal(inputs: Inputs, autoscaling: AutoscalingSpec) -> Manifest:
    selector = {"matchLabels": {"rljob": inputs.job.metadata.name}}
    external = {"metric": {"name": METRIC, "selector": selector}, "target": {"type": "Value", "value": TARGET}}
    spec: Manifest = {
        "scaleTargetRef": _target(inputs),
        "minReplicas": autoscaling.min_replicas,
        "maxReplicas": autoscaling.max_replicas,
        "metrics": [{"type": "External", "external": external}],
        "behavior": _behavior(autoscaling),
    }
    return _object(inputs, "autoscaling/v2", KINDS["HPA"], spec)


def _scaled_object(inputs: Inputs, autoscaling: AutoscalingSpec) -> Manifest:
    """Read the coordinator's own metrics: no Prometheus is needed."""
    role, job = enums.Role.COORDINATOR, inputs.job.metadata
    host = f"{child_name(inputs, role)}.{job.namespace}.svc"
    trigger = {
        "type": "metrics-api",
        "metricType": "Value",
        "metadata": {
            "url": f"http://{host}:{first_config(inputs, role).health_port}/metrics",
            "format": "prometheus",
            "valueLocation": f'{METRIC}{{rljob="{job.name}"}}',
            "targetValue": TARGET,
        },
    }
    hpa_config = {"name": child_name(inputs, enums.Role.ROLLOUT), "behavior": _behavior(autoscaling)}
    spec: Manifest = {
        "scaleTargetRef": _target(inputs),
        "minReplicaCount": autoscaling.min_replicas,
        "maxReplicaCount": autoscaling.max_replicas,
        "pollingInterval": _POLL_S,
        "advanced": {"horizontalPodAutoscalerConfig": hpa_config},
        "triggers": [trigger],
    }
    return _object(inputs, f"{KEDA}/v1alpha1", KINDS["KEDA"], spec)


def _target(inputs: Inputs) -> Manifest:
    job = inputs.job
    return {"apiVersion": job.api_version, "kind": job.kind, "name": job.metadata.name}


def _behavior(autoscaling: AutoscalingSpec) -> Manifest:
    """Up fast, down slowly: a pod that goes drains for minutes and takes its cache with it."""
    return {
        "scaleUp": {
            "stabilizationWindowSeconds": _UP_STABILIZATION_S,
            "selectPolicy": "Max",
            "policies": [
                {"type": "Percent", "value": 100, "periodSeconds": 60},
                {"type": "Pods", "value": 2, "periodSeconds": 60},
            ],
        },
        "scaleDown": {
            "stabilizationWindowSeconds": autoscaling.scale_down_stabilization_seconds,
            "selectPolicy": "Max",
            "policies": [{"type": "Percent", "value": 25, "periodSeconds": 120}],
        },
    }


def _object(inputs: Inputs, api_version: str, kind: str, spec: Manifest) -> Manifest:
    role = enums.Role.ROLLOUT
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": metadata(inputs, child_name(inputs, role), labels(inputs, role)),
        "spec": spec,
    }
