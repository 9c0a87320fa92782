"""What makes a role's pods reachable and scraped: headless Services, ServiceAccounts without rights, the PodMonitor."""

from collections.abc import Set

from rljob_api import enums, process_config
from rljob_api.manifest.job import JobSpec
from rljob_operator.resources import container
from rljob_operator.resources.inputs import (
    Inputs,
    Manifest,
    child_name,
    first_config,
    job_labels,
    labels,
    metadata,
    selector,
)


def service(inputs: Inputs, role: enums.Role) -> Manifest:
    """Return the Service `<job>-<role>`.

    A trainer's and a coordinator's pods are found before they are ready: a rendezvous must not wait for readiness. So
    are rollouts that agents dial by the names of their pods: a session goes on while its rollout is behind or drains.
    Headless for verifiers too, so that a client sees every pod and spreads its calls itself.
    """
    config = first_config(inputs, role)
    by_name = isinstance(config, process_config.RolloutConfig) and bool(config.gateway and config.gateway.service)
    early = by_name or role in (enums.Role.TRAINER, enums.Role.COORDINATOR)
    ports = container.ports(config)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(inputs, child_name(inputs, role), labels(inputs, role)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": early,
            "selector": selector(inputs, role),
            "ports": [
                {"name": port["name"], "port": port["containerPort"], "targetPort": port["name"], "protocol": "TCP"}
                for port in ports
            ],
        },
    }


def service_account(inputs: Inputs, role: enums.Role) -> Manifest:
    """Return the account that a role's pods run as unless the user names one."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(inputs, child_name(inputs, role), labels(inputs, role)),
        "automountServiceAccountToken": False,
    }


MONITORING_GROUP = "monitoring.coreos.com"
SCRAPE_INTERVAL = "15s"


def wants_pod_monitor(spec: JobSpec, served: Set[str]) -> bool:
    """Return whether a job has one: where its API is served, unless the manifest says no."""
    return MONITORING_GROUP in served and spec.observability.pod_monitor is not False


def pod_monitor(inputs: Inputs) -> Manifest:
    """Return the PodMonitor `<job>`, with the labels by which the installation's Prometheus selects such objects."""
    job, labels = inputs.job.metadata, job_labels(inputs.job)
    return {
        "apiVersion": f"{MONITORING_GROUP}/v1",
        "kind": "PodMonitor",
        "metadata": metadata(inputs, job.name, {**inputs.settings.pod_monitor_labels, **labels}),
        "spec": {
            "selector": {"matchLabels": {"rljob.dev/uid": job.uid}},
            "podMetricsEndpoints": [{"port": "health", "path": "/metrics", "interval": SCRAPE_INTERVAL}],
        },
    }
