"""Plain HTTP for probes and scrapes, on a thread of its own so that a busy event loop cannot starve it.

GET /healthz: the process answers and `alive` holds. GET /readyz: `ready` holds, else 503 with the reason.
GET /metrics: Prometheus text. POST /stop, from loopback only: asks the process to stop in an orderly way.
"""

import http.server
import ipaddress
import threading
from collections.abc import Callable

from rljob_workers.runtime import metrics as metrics_module

Probe = Callable[[], tuple[bool, str]]


def always() -> tuple[bool, str]:
    """The probe that holds."""
    return True, "ok"


def nothing() -> None:
    """The stop request that nobody waits for."""


class HealthServer:
    """Serves one process's probes; `start` binds, `close` frees the port."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        metrics: metrics_module.Metrics,
        ready: Probe,
        alive: Probe = always,
        on_stop: Callable[[], None] = nothing,
    ) -> None:
        """Keep the probes. They are called on the server's thread and must not block."""
        handler = _handler(metrics=metrics, ready=ready, alive=alive, on_stop=on_stop)
        self._server = http.server.ThreadingHTTPServer((host, port), handler, bind_and_activate=False)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=lambda: self._server.serve_forever(poll_interval=0.05), name="health", daemon=True
        )

    @property
    def port(self) -> int:
        """Return the bound port."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Bind and serve. Raises OSError if the port is taken."""
        self._server.allow_reuse_address = True
        self._server.server_bind()
        self._server.server_activate()
        self._thread.start()

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(
    *, metrics: metrics_module.Metrics, ready: Probe, alive: Probe, on_stop: Callable[[], None]
) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, metrics.exposition(), "text/plain; version=0.0.4; charset=utf-8")
            elif self.path in ("/healthz", "/readyz"):
                holds, reason = (alive if self.path == "/healthz" else ready)()
                self._answer(200 if holds else 503, f"{reason}\n".encode(), "text/plain; charset=utf-8")
            else:
                self._answer(404, b"try /healthz, /readyz or /metrics\n", "text/plain; charset=utf-8")

        def do_POST(self) -> None:
            if self.path != "/stop" or not ipaddress.ip_address(self.client_address[0]).is_loopback:
                self._answer(404, b"\n", "text/plain; charset=utf-8")
                return
            on_stop()
            self._answer(202, b"stopping\n", "text/plain; charset=utf-8")

        def _answer(self, code: int, body: bytes, content_type: str) -> None:
            self.send_response(code)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Probes are not worth a log line."""

    return Handler
