"""A job's PodMonitor: one for all roles, found by the job's label."""

from collections.abc import Set

from rljob_api.job import JobSpec
from rljob_operator.resources.inputs import Inputs, Manifest, job_labels, metadata

GROUP = "monitoring.coreos.com"
INTERVAL = "15s"


def is_wanted(spec: JobSpec, served: Set[str]) -> bool:
    """Return whether a job has one: where its API is served, unless the manifest says no."""
    return GROUP in served and spec.observability.pod_monitor is not False


def pod_monitor(inputs: Inputs) -> Manifest:
    """Return the PodMonitor `<job>`, with the labels by which the installation's Prometheus selects such objects."""
    job, labels = inputs.job.metadata, job_labels(inputs.job)
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "PodMonitor",
        "metadata": metadata(inputs, job.name, {**inputs.settings.pod_monitor_labels, **labels}),
        "spec": {
            "selector": {"matchLabels": {"rljob.dev/uid": job.uid}},
            "podMetricsEndpoints": [{"port": "health", "path": "/metrics", "interval": INTERVAL}],
        },
    }
