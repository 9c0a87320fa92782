"""Admission webhooks of a test's own on a real API server: one that refuses what it is asked, one that adds to pods.

The server is a process in the network of the API server, so that it is reached at an address of the cluster's own.
"""

import base64
import contextlib
import json
import pathlib
import sys
from collections.abc import Iterator, Sequence

from rljob_testing.cluster import processes, webhook_server
from rljob_testing.cluster.admission import Answer, wait_until_admission
from rljob_testing.cluster.certs import Authority
from rljob_testing.cluster.light import LightCluster
from rljob_testing.cluster.manifests import Object

_READY_S = 30.0
_NAME = "webhook"
# Of what is not of the core.
_GROUPS = {"deployments": "apps", "statefulsets": "apps", "jobs": "batch", "poddisruptionbudgets": "policy"}


class Webhooks:
    """What the API server asks. Each webhook is in force while its context lasts, and concerns one namespace."""

    def __init__(self, cluster: LightCluster, url: str, authority: pathlib.Path) -> None:
        self._cluster, self._url = cluster, url
        self._bundle = base64.b64encode(authority.read_bytes()).decode()

    @contextlib.contextmanager
    def refusing(
        self, resource: str, namespace: str, *, code: int = 422, user: str = "", existing: str = ""
    ) -> Iterator[None]:
        """Refuse to make or change objects of a resource; of one user only, where it is named with an object that is
        there and that it may change.
        """
        said = f"request.userInfo.username == '{user}'"
        conditions: list[Object] = [{"name": "of-user", "expression": said}] if user else []
        one = self._webhook(f"refuse/{code}", (resource,), namespace, operations=("CREATE", "UPDATE"))
        with self._registered("ValidatingWebhookConfiguration", {**one, "matchConditions": list(conditions)}):
            wait_until_admission(
                self._cluster,
                resource,
                namespace,
                lambda answer: webhook_server.MESSAGE in answer.stderr,
                user=user,
                existing=existing,
            )
            yield

    @contextlib.contextmanager
    def silent(self, resource: str, namespace: str) -> Iterator[None]:
        """Be registered for a resource, and answer no one: the API server cannot ask, and refuses."""
        one = self._webhook("refuse/403", (resource,), namespace, operations=("CREATE", "UPDATE"))
        # The port of a service that discards what it is reported, if it is there at all.
        one["clientConfig"] = {"url": f"https://{self._cluster.network.address}:9/"}
        with self._registered("ValidatingWebhookConfiguration", one):
            wait_until_admission(self._cluster, resource, namespace, lambda answer: answer.returncode != 0)
            yield

    @contextlib.contextmanager
    def injecting(self, namespace: str) -> Iterator[None]:
        """Add to pods and to the templates that they are made of, on each write that may change them."""
        one = self._webhook("inject", ("deployments", "statefulsets"), namespace, operations=("CREATE", "UPDATE"))
        # Their templates are never changed.
        other = self._webhook("inject", ("jobs", "pods"), namespace, operations=("CREATE",))
        with self._registered("MutatingWebhookConfiguration", one, {**other, "name": f"once.{one['name']}"}):
            wait_until_admission(self._cluster, "deployments", namespace, _is_injected)
            yield

    def _webhook(self, path: str, resources: Sequence[str], namespace: str, *, operations: Sequence[str]) -> Object:
        rules: list[Object] = [
            {
                "apiGroups": [_GROUPS.get(one, "")],
                "apiVersions": ["v1"],
                "operations": list(operations),
                "resources": [one],
            }
            for one in resources
        ]
        return {
            "name": f"{path.partition('/')[0]}.rljob.test",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "timeoutSeconds": 5,
            "failurePolicy": "Fail",
            "clientConfig": {"url": f"{self._url}/{path}", "caBundle": self._bundle},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "rules": list(rules),
        }

    @contextlib.contextmanager
    def _registered(self, kind: str, *webhooks: Object) -> Iterator[None]:
        name = str(webhooks[0]["name"])
        body: Object = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": name},
            "webhooks": list(webhooks),
        }
        made = self._cluster.kubectl("create", "-f", "-", stdin=json.dumps(body))
        assert made.returncode == 0, made.stderr
        try:
            yield
        finally:
            gone = self._cluster.kubectl("delete", kind, name)
            assert gone.returncode == 0, gone.stderr


def _is_injected(answer: Answer) -> bool:
    return webhook_server.INJECTED in answer.stdout


@contextlib.contextmanager
def serving(cluster: LightCluster) -> Iterator[Webhooks]:
    """Yield webhooks that a process alongside the API server answers."""
    folder, address = cluster.run_dir / _NAME, cluster.network.address
    authority = Authority(folder)
    authority.server(_NAME, (), (address,))
    script, port = pathlib.Path(__file__).with_name("webhook_server.py"), folder / "port"
    port.unlink(missing_ok=True)
    files = (folder / f"{_NAME}.crt", folder / f"{_NAME}.key", port)
    command = [*cluster.network.enter, sys.executable, "-I", str(script), address, *map(str, files)]
    processes.start(cluster.run_dir, _NAME, command)
    try:
        processes.wait_until(cluster.run_dir, _NAME, port.exists, _READY_S)
        yield Webhooks(cluster, f"https://{address}:{port.read_text()}", folder / "ca.crt")
    finally:
        processes.stop(cluster.run_dir, _NAME)
