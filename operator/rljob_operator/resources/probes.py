"""Probes of a role: plain HTTP on the health port, because a kubelet has no client certificate."""

from rljob_operator.resources.inputs import Manifest

PERIOD_S = 5
# As long as startupDeadlineSeconds may be. How long a start may take is the operator's to judge, and may be changed
# while pods start, which a pod's probe may not.
START_S = 604_800
LIVENESS_PERIOD_S, LIVENESS_FAILURES = 10, 6


def probes() -> Manifest:
    """Return startup, liveness and readiness probes."""
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
