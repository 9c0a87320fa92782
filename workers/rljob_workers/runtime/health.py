"""Plain HTTP for probes and scrapes, on a thread of its own so that a busy event loop cannot starve it.

GET /healthz: the process answers and `alive` holds. GET /readyz: `ready` holds, else 503 with the reason.
GET /metrics: Prometheus text. POST /stop: asks the process to stop in an orderly way.

Anyone whom the network lets through may open connections here, so their number, their age and what they may say are
bounded. A stop is asked for by who can read a file that only this user can: where a call comes from proves nothing,
since in a mesh every call comes from a proxy on loopback.
"""

import hmac
import http.server
import os
import pathlib
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

from rljob_api import process_config
from rljob_workers.runtime import metrics as metrics_module

STOP_HEADER = "X-RLJob-Stop-Token"
# The kubelet's probes, a scrape or two, a look by hand; anyone who opens one more loses the oldest.
MOST_CONNECTIONS = 16
# Silence on a connection; a probe's own timeout is 5 s.
IDLE_S = 5.0
_BACKLOG = 64

Probe = Callable[[], tuple[bool, str]]


def always() -> tuple[bool, str]:
    return True, "ok"


def nothing() -> None:
    """The stop request that nothing waits for."""


def stop_token_file(config: process_config.ProcessConfig) -> pathlib.Path:
    """Return where a process leaves what a request to stop it must carry; several may share a scratch folder."""
    return pathlib.Path(config.scratch_dir) / f"stop-{config.health_port}.token"


def stop_token(path: pathlib.Path) -> str:
    """Return the token in a file; empty without one, as before its process has started or after it has ended."""
    try:
        return path.read_text(encoding="ascii")
    except FileNotFoundError:
        return ""


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
        token_file: pathlib.Path | None = None,
    ) -> None:
        """Keep the probes. They are called on the server's thread and must not block.

        token_file: where `start` leaves what a stop must carry; without one no one can ask for a stop.
        """
        self._token_file, token = token_file, secrets.token_hex(32)
        self._token = "" if token_file is None else token
        handler = _handler(metrics=metrics, ready=ready, alive=alive, on_stop=on_stop, token=self._token)
        self._server = _Server((host, port), handler, bind_and_activate=False)
        self._thread = threading.Thread(
            target=lambda: self._server.serve_forever(poll_interval=0.05), name="health", daemon=True
        )

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Bind and serve. Raises OSError if the port is taken, or the token cannot be left."""
        self._server.allow_reuse_address = True
        self._server.server_bind()
        self._server.server_activate()
        if self._token_file is not None:
            _leave(self._token, self._token_file)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        if self._token_file is not None:
            self._token_file.unlink(missing_ok=True)


class Probed(Protocol):
    """What a program serves, as its probes see it; safe from another thread."""

    metrics: metrics_module.Metrics

    def ready(self) -> tuple[bool, str]: ...


def probes_of(config: process_config.ProcessConfig, service: Probed, on_stop: Callable[[], None]) -> HealthServer:
    """Return the server of a program's probes, not yet started."""
    return HealthServer(
        host=config.health_host,
        port=config.health_port,
        metrics=service.metrics,
        ready=service.ready,
        on_stop=on_stop,
        token_file=stop_token_file(config),
    )


def _leave(token: str, path: pathlib.Path) -> None:
    """Write a file that no one else can read, in place of one that an earlier process left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(token)


class _Server(http.server.ThreadingHTTPServer):
    """One thread a connection, of a bounded number: who says nothing makes room for who comes."""

    daemon_threads = True
    request_queue_size = _BACKLOG

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        # In the order in which they were opened.
        self._open: dict[socket.socket, None] = {}
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection on a thread of its own; close the oldest where there are too many."""
        with self._lock:
            while len(self._open) >= MOST_CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                _hang_up(oldest)
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of connections that broke; anything else is ours."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _hang_up(connection: socket.socket) -> None:
    """Let the thread that reads from a connection see its end."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # The other side was faster.


def _handler(
    *, metrics: metrics_module.Metrics, ready: Probe, alive: Probe, on_stop: Callable[[], None], token: str
) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = IDLE_S

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, metrics.exposition(), "text/plain; version=0.0.4; charset=utf-8")
            elif self.path in ("/healthz", "/readyz"):
                holds, reason = (alive if self.path == "/healthz" else ready)()
                self._answer(200 if holds else 503, f"{reason}\n".encode(), "text/plain; charset=utf-8")
            else:
                self._answer(404, b"try /healthz, /readyz or /metrics\n", "text/plain; charset=utf-8")

        def do_POST(self) -> None:
            shown = self.headers.get(STOP_HEADER, "").encode()
            if self.path != "/stop" or not token or not hmac.compare_digest(shown, token.encode()):
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
