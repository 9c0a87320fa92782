"""An admission webhook over HTTPS: `webhook_server.py HOST CERTIFICATE KEY PORT_FILE`. It writes its port to that file.

The path of a request says what is done: `/refuse/CODE` refuses, `/inject` adds to pod templates and pods what policies
and meshes add to them. Nothing is added twice, so what is injected once stays as it is.
"""

import base64
import copy
import http.server
import json
import os
import pathlib
import ssl
import sys
from typing import Any

MESSAGE = "no change is taken before the freeze is over"
INJECTED = "injected"
_TOLERATION = {"key": "rljob.test/injected", "operator": "Exists"}


def answer(path: str, review: dict[str, Any]) -> dict[str, Any]:
    """Return what is answered to a review."""
    request, (verb, *rest) = review["request"], path.strip("/").split("/")
    said: dict[str, Any] = {"uid": request["uid"], "allowed": verb != "refuse"}
    if verb == "refuse":
        said["status"] = {"code": int(rest[0]), "message": MESSAGE}
    else:
        at = "/spec" if request["kind"]["kind"] == "Pod" else "/spec/template/spec"
        patch = [{"op": "replace", "path": at, "value": injected(_below(request["object"], at))}]
        said |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": said}


def injected(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a pod's spec with a volume, a toleration, and in every container a mount, a variable and a request."""
    spec = copy.deepcopy(spec)
    _add(spec, "volumes", {"name": INJECTED, "emptyDir": {}})
    _add(spec, "tolerations", _TOLERATION, key="key")
    for container in spec["containers"]:
        _add(container, "env", {"name": "INJECTED", "value": "1"})
        _add(container, "volumeMounts", {"name": INJECTED, "mountPath": f"/{INJECTED}"})
        container.setdefault("resources", {}).setdefault("requests", {}).setdefault("ephemeral-storage", "1Mi")
    return spec


def _add(node: dict[str, Any], field: str, item: dict[str, Any], *, key: str = "name") -> None:
    # First, as some webhooks do: anyone who compares lists by position finds everything moved.
    if all(one.get(key) != item[key] for one in node.get(field, ())):
        node[field] = [item, *node.get(field, ())]


def _below(node: dict[str, Any], path: str) -> dict[str, Any]:
    for key in path.strip("/").split("/"):
        node = node[key]
    return node


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps(answer(self.path.partition("?")[0], review)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _serve(host: str, certificate: str, key: str, port_file: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = http.server.ThreadingHTTPServer((host, 0), _Handler)
    # A handshake belongs to the thread of its connection, not to the one that accepts.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    # Anyone who finds the file finds the whole number in it.
    fresh = pathlib.Path(f"{port_file}.new")
    fresh.write_text(str(server.server_address[1]))
    os.replace(fresh, port_file)
    server.serve_forever()


if __name__ == "__main__":
    _serve(*sys.argv[1:])
