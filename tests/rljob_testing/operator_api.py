"""An API server over one kept connection, as administrator: what kubectl would start a process for each time."""

import http.client
import json
import socket
import ssl
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any

from rljob_operator.kube.kinds import Kind
from rljob_testing.cluster.light import LOOPBACK, LightCluster
from rljob_testing.operator_series import Series, series

Object = dict[str, Any]
_TIMEOUT_S = 120.0
# The server closes what no one used for a minute and a half.
_FRESH_S = 30.0
_PAGE = 500
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class RefusedError(RuntimeError):
    """The API server refused; the message has its status and words."""


class ClusterApi:
    """Requests to one cluster; not for several threads at once."""

    def __init__(self, cluster: LightCluster) -> None:
        """Open nothing before the first request."""
        pki = cluster.run_dir / "pki"
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        self._connection = http.client.HTTPSConnection(LOOPBACK, cluster.port, context=context, timeout=_TIMEOUT_S)
        self._used_at = 0.0

    def send(self, method: str, path: str, body: object = None, *, content: str = "json", accept: str = "") -> bytes:
        """Return an answer's bytes. `content`: json, or merge-patch+json. Raises RefusedError."""
        headers = {"Content-Type": f"application/{content}", "Accept": accept or "application/json"}
        data = None if body is None else json.dumps(body)
        if time.monotonic() - self._used_at > _FRESH_S:
            self._connection.close()
        try:
            self._connection.request(method, path, body=data, headers=headers)
            answer = self._connection.getresponse()
            read = answer.read()
        except (http.client.HTTPException, OSError):
            # It has to be opened again before the next request.
            self._connection.close()
            raise
        self._used_at = time.monotonic()
        if answer.status >= 400:
            raise RefusedError(f"{method} {path}: {answer.status} {read[:500].decode(errors='replace')}")
        return read

    def create(self, kind: Kind, namespace: str | None, body: Object) -> Object:
        """Create an object. Raises RefusedError."""
        made: Object = json.loads(self.send("POST", kind.path(namespace), body))
        return made

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """Return an object. Raises RefusedError."""
        found: Object = json.loads(self.send("GET", kind.path(namespace, name)))
        return found

    def merge(self, kind: Kind, namespace: str, name: str, body: Object, *, subresource: str = "") -> None:
        """Change fields of an object. Raises RefusedError."""
        path = kind.path(namespace, name, subresource=subresource)
        self.send("PATCH", path, body, content="merge-patch+json")

    def delete_all(self, kind: Kind, namespace: str) -> None:
        """Delete every object of a kind in a namespace, in one request. Raises RefusedError."""
        self.send("DELETE", kind.path(namespace))

    def count(self, kind: Kind, namespace: str) -> int:
        """Return how many objects of a kind a namespace holds, in one small request. Raises RefusedError."""
        page = json.loads(self.send("GET", f"{kind.path(namespace)}?limit=1", accept=_METADATA_ONLY))
        # A list of metadata without objects has null in their place.
        return len(page["items"] or ()) + int(page["metadata"].get("remainingItemCount", 0))

    def metadata(self, kind: Kind, namespace: str, *, selector: str = "", fields: str = "") -> Iterator[Object]:
        """Yield the metadata of all objects of a kind, page by page. fields: a field selector. Raises RefusedError."""
        chosen, token = {"limit": _PAGE, "labelSelector": selector, "fieldSelector": fields}, ""
        while True:
            query = urllib.parse.urlencode({**chosen, "continue": token})
            page = json.loads(self.send("GET", f"{kind.path(namespace)}?{query}", accept=_METADATA_ONLY))
            for item in page["items"] or ():
                yield item["metadata"]
            token = page["metadata"].get("continue", "")
            if not token:
                return

    def list(self, kind: Kind, namespace: str, *, selector: str = "") -> list[Object]:
        """Return all objects of a kind in a namespace. Raises RefusedError."""
        query = urllib.parse.urlencode({"labelSelector": selector})
        found: list[Object] = json.loads(self.send("GET", f"{kind.path(namespace)}?{query}"))["items"]
        return found

    def list_all(self, kind: Kind, *, selector: str) -> tuple[Sequence[Object], str]:
        """Return all objects of a kind in all namespaces, and the version after which a watch continues.

        Raises RefusedError.
        """
        query = urllib.parse.urlencode({"labelSelector": selector})
        answer: Object = json.loads(self.send("GET", f"{kind.path(None)}?{query}"))
        return answer["items"], answer["metadata"]["resourceVersion"]

    def watch(self, kind: Kind, *, selector: str, since: str) -> Iterator[Object]:
        """Yield the events of a kind in all namespaces after a version until it ends.

        Raises HTTPException or OSError where the connection breaks or is silent for long, ValueError for half an event.
        """
        query = urllib.parse.urlencode({"watch": "true", "labelSelector": selector, "resourceVersion": since})
        try:
            self._connection.request("GET", f"{kind.path(None)}?{query}", headers={"Accept": "application/json"})
            answer = self._connection.getresponse()
            while line := answer.readline():
                yield json.loads(line) if answer.status < 400 else {"type": "ERROR", "object": {}}
        finally:
            self._connection.close()

    def interrupt(self) -> None:
        """End a watch from another thread: anyone who reads it sees its end."""
        if self._connection.sock is not None:
            self._connection.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def series(self) -> Series:
        """Return what the API server itself counts. Raises RefusedError."""
        return series(self.send("GET", "/metrics", accept="text/plain").decode())
