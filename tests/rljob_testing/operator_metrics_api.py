"""A small real metrics API server: external.metrics.k8s.io over TLS, behind the API server's aggregation layer.

It serves one metric, the pressure on rollouts, by the coordinator's own formula from shares that a test sets.
What an adapter would add is the way from a scrape to this answer.
"""

import base64
import contextlib
import http.server
import json
import pathlib
import ssl
import threading
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

from rljob_operator import clock
from rljob_operator.resources import autoscaling
from rljob_testing.cluster.certs import Authority
from rljob_testing.cluster.light import LOOPBACK
from rljob_workers.coordinator.reporting import scaling_signal

GROUP, VERSION = autoscaling.EXTERNAL_METRICS, "v1beta1"
SERVICE, NAMESPACE = "external-metrics", "default"
# The front proxy is known by this name, since the same authority signs users.
FRONT_PROXY = "rljob-test-front-proxy"
_ROOT = f"/apis/{GROUP}/{VERSION}"
Object = dict[str, Any]


class MetricsApi:
    """What is served. blocked, waiting: shares of time that rollouts are blocked and that the trainer waits."""

    def __init__(self) -> None:
        """Begin with a trainer that waits as little as it may."""
        self.blocked, self.waiting, self.target = 0.0, 0.1, 0.1
        self.asked: set[tuple[str, str, str]] = set()
        self.port = 0

    def answer(self, path: str) -> Object | None:
        """Return what a path serves; None for what is not there. Asked: namespace, metric, selector."""
        parts = urllib.parse.urlsplit(path)
        if parts.path == _ROOT:
            row = {"name": autoscaling.METRIC, "singularName": "", "namespaced": True, "verbs": ["get"]}
            rows = [{**row, "kind": "ExternalMetricValueList"}]
            return {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": f"{GROUP}/{VERSION}",
                "resources": rows,
            }
        found = parts.path.removeprefix(f"{_ROOT}/namespaces/").split("/")
        if not parts.path.startswith(f"{_ROOT}/namespaces/") or found[1:] != [autoscaling.METRIC]:
            return None
        selector = urllib.parse.parse_qs(parts.query).get("labelSelector", [""])[0]
        self.asked.add((found[0], found[1], selector))
        ratio = scaling_signal.pressure(blocked=self.blocked, waiting=self.waiting, target=self.target)
        labels = dict(one.split("=", 1) for one in selector.split(",") if one)
        item = {"metricName": found[1], "metricLabels": labels, "value": f"{round(1000 * ratio)}m"}
        item["timestamp"] = clock.to_timestamp(time.time())
        return {"kind": "ExternalMetricValueList", "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}, "items": [item]}

    def objects(self, authority: pathlib.Path) -> list[Object]:
        """Return what makes the API server ask here: a Service without pods, and the group behind it."""
        bundle = base64.b64encode(authority.read_bytes()).decode()
        service = {"name": SERVICE, "namespace": NAMESPACE}
        spec = {
            "group": GROUP,
            "version": VERSION,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "service": {**service, "port": self.port},
            "caBundle": bundle,
        }
        outside = {"type": "ExternalName", "externalName": LOOPBACK}
        return [
            {"apiVersion": "v1", "kind": "Service", "metadata": service, "spec": outside},
            {
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": f"{VERSION}.{GROUP}"},
                "spec": spec,
            },
        ]


def certify(authority: Authority) -> None:
    """Write the server's certificate, and the one that the API server shows it."""
    authority.server("metrics", (f"{SERVICE}.{NAMESPACE}.svc",), (LOOPBACK,))
    authority.client("front-proxy", FRONT_PROXY)


def proxy_flags(pki: pathlib.Path) -> dict[str, str]:
    """Return the flags of an API server that asks servers behind it."""
    return {
        "requestheader-client-ca-file": str(pki / "ca.crt"),
        "requestheader-allowed-names": FRONT_PROXY,
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "proxy-client-cert-file": str(pki / "front-proxy.crt"),
        "proxy-client-key-file": str(pki / "front-proxy.key"),
    }


@contextlib.contextmanager
def serving(pki: pathlib.Path) -> Iterator[MetricsApi]:
    """Yield the API while it is served on loopback, to whom shows a certificate of the authority and no one else."""
    api = MetricsApi()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            found = api.answer(self.path)
            body = json.dumps(found if found is not None else {"kind": "Status", "status": "Failure"}).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: tests ask what was asked."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki / "metrics.crt", pki / "metrics.key")
    context.load_verify_locations(pki / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    server = http.server.ThreadingHTTPServer((LOOPBACK, 0), Handler)
    # A handshake belongs to the thread of its connection, not to the one that accepts.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.daemon_threads = True
    api.port = int(server.server_address[1])
    running = threading.Thread(target=server.serve_forever, name="metrics API", daemon=True)
    running.start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        running.join()
