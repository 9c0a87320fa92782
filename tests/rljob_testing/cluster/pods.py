"""Small pods for tests of the network: a web server in the slim image, under the restricted posture of our own pods."""

from rljob_testing.cluster import images
from rljob_testing.cluster.manifests import Object

PORT = 8000
_FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())"


def server(name: str, node: str) -> Object:
    """Return a pod on a node that answers every path with its own name."""
    script = (
        "import http.server, os\n"
        "class Own(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200)\n"
        "        self.end_headers()\n"
        "        self.wfile.write(os.environ['HOSTNAME'].encode())\n"
        f"http.server.ThreadingHTTPServer(('', {PORT}), Own).serve_forever()\n"
    )
    container: Object = {
        "name": "web",
        "image": images.SLIM.name,
        "imagePullPolicy": "Never",
        "command": ["python", "-c", script],
        "readinessProbe": {"httpGet": {"path": "/", "port": PORT}, "periodSeconds": 1},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "subdomain": "each",
            "hostname": name,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
        },
    }


def service(name: str, *, headless: bool) -> Object:
    """Return a Service in front of the servers."""
    spec: Object = {"selector": {"app": "web"}, "ports": [{"port": PORT}]}
    if headless:
        spec["clusterIP"] = "None"
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def fetch(url: str) -> list[str]:
    """Return the command that prints what a URL answers."""
    return ["python", "-c", _FETCH, url]
