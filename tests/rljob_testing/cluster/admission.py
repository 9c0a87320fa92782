"""Quotas and webhooks that are in force: the API server admits by caches, which follow a moment after a write."""

import json
import subprocess
import time
from collections.abc import Callable

from rljob_testing.cluster.light import LightCluster
from rljob_testing.cluster.manifests import Object

# Seconds. A cache follows within one; a quota is first counted by its controller.
IN_FORCE_S = 60.0
_POLL_S = 0.1
# What is asked for, and never made.
_PROBES = {
    "pods": ("run", "probe", "--image=example/probe:1"),
    "deployments": ("create", "deployment", "probe", "--image=example/probe:1"),
    "poddisruptionbudgets": ("create", "poddisruptionbudget", "probe", "--selector=app=probe", "--min-available=1"),
}
_CHANGE = '{"metadata": {"annotations": {"example.com/probe": "1"}}}'

Answer = subprocess.CompletedProcess[str]


def wait_until_admission(
    cluster: LightCluster,
    resource: str,
    namespace: str,
    holds: Callable[[Answer], bool],
    *,
    user: str = "",
    existing: str = "",
) -> None:
    """Wait until the API server answers as it should to a dry run that creates an object of a resource.

    user: in whose name, if not the administrator's. existing: an object that the dry run changes instead, for a user
    who may not create any.
    """
    probe = ("patch", resource, existing, "--type=merge", "-p", _CHANGE) if existing else _PROBES[resource]
    identity = (f"--as={user}",) if user else ()
    end = time.monotonic() + IN_FORCE_S
    while True:
        answer = cluster.kubectl(*probe, "-n", namespace, *identity, "--dry-run=server", "-o", "json")
        if holds(answer):
            return
        assert time.monotonic() < end, f"{resource} in {namespace}: {answer.stdout}{answer.stderr}"
        time.sleep(_POLL_S)


def apply_quota(cluster: LightCluster, namespace: str, name: str, hard: dict[str, str], refusal: str) -> None:
    """Apply a ResourceQuota, and wait until pods are refused with a text."""
    body: Object = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"hard": dict(hard)},
    }
    done = cluster.kubectl("apply", "-f", "-", stdin=json.dumps(body))
    assert done.returncode == 0, done.stderr
    wait_until_admission(cluster, "pods", namespace, lambda answer: refusal in answer.stderr)
