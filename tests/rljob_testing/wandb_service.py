"""A stand-in for the service of Weights & Biases on loopback: as much of its API as wandb 0.31 asks of it for metrics.

It keeps the lines of a run's history by their number, as the service does: one that is sent again replaces itself.
"""

import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

# As long as a real one.
KEY = "0123456789abcdef0123456789abcdef01234567"
_PROJECT = {"id": "project", "name": "rljob", "entity": {"id": "entity", "name": "team"}}


class Service(http.server.ThreadingHTTPServer):
    """history: lines by number; runs: what was said of each run when it was made."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.history: dict[int, dict[str, Any]] = {}
        self.runs: dict[str, Mapping[str, Any]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def served() -> Iterator[Service]:
    """Serve in a thread of this process."""
    with Service() as service:
        threading.Thread(target=service.serve_forever, daemon=True).start()
        yield service
        service.shutdown()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Service

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        self._answer({})

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer({})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        if self.path.startswith("/graphql"):
            self._answer({"data": self._data(body["query"], body.get("variables") or {})})
        else:
            self._keep(body)
            self._answer({"exitcode": None, "limits": {}})

    def _data(self, query: str, variables: Mapping[str, Any]) -> Mapping[str, Any]:
        if "upsertBucket" in query:
            name = variables["name"]
            is_new = name not in self.server.runs
            self.server.runs.setdefault(name, variables)
            return {"upsertBucket": {"bucket": {**self._bucket(name), "id": "run"}, "inserted": is_new}}
        if "createRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.server.url}/files/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "run", "uploadHeaders": [], "files": files}}
        if "bucket(" in query:
            name = str(variables.get("name") or variables.get("run"))
            return {"model": {"bucket": self._bucket(name) if name in self.server.runs else None}}
        if "viewer" in query:
            return {
                "viewer": {"id": "user", "entity": "team", "username": "user", "flags": "{}", "teams": {"edges": []}}
            }
        return {"serverInfo": {"features": []}}

    def _bucket(self, name: str) -> Mapping[str, Any]:
        lines = len(self.server.history)
        last = self.server.history.get(lines - 1)
        return {
            "name": name, "displayName": "job", "description": None, "sweepName": None, "project": _PROJECT,
            "config": self.server.runs[name].get("config") or "{}", "summaryMetrics": "{}", "historyLineCount": lines,
            "eventsLineCount": 0, "logLineCount": 0, "historyTail": json.dumps([json.dumps(last)] if last else []),
            "eventsTail": "[]", "tags": [], "wandbConfig": "{}",
        }  # fmt: skip

    def _keep(self, body: Mapping[str, Any]) -> None:
        lines = body.get("files", {}).get("wandb-history.jsonl", {"offset": 0, "content": []})
        for number, line in enumerate(lines["content"], start=lines["offset"]):
            self.server.history[number] = json.loads(line)

    def _answer(self, body: Mapping[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
