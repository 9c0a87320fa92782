"""Probes of a role: plain HTTP on the health port, because a kubelet has no client certificate."""

from rljob_operator.resources.inputs import Manifest

PERIOD_S = 5
LIVENESS_PERIOD_S, LIVENESS_FAILURES = 10, 6


def probes(*, startup_deadline_s: int) -> Manifest:
    """Return startup, liveness and readiness probes; starting may take the whole deadline."""
    return {
        "startupProbe": {
            **_get("/healthz"),
            "periodSeconds": PERIOD_S,
            "failureThreshold": -(-startup_deadline_s // PERIOD_S),
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
