"""The requests by the Kubernetes client. Its only importer; importing it takes a second."""

import contextlib
import json
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import kubernetes
import urllib3

from rljob import errors
from rljob.api import Object
from rljob_api import enums
from rljob_api.manifest.runtime import CLUSTER_KIND

# connect, read
_LIMITS_S = (10.0, 30.0)
_FIELD_MANAGER = "rljob"
_PLURAL = "rljobs"
_CONTAINER = "rljob"


class KubernetesApi:
    """The Kubernetes client of the kubeconfig's user, or of the pod that this runs in."""

    def __init__(self, *, kubeconfig: str | pathlib.Path | None, context: str | None, namespace: str | None) -> None:
        """Raises ApiError where neither a kubeconfig nor a pod's account is there."""
        client, default = _connect(kubeconfig, context)
        self.namespace = namespace or default
        # Its types say nothing of a raw answer, nor of options that are not there.
        self._custom: Any = kubernetes.client.CustomObjectsApi(client)
        self._core: Any = kubernetes.client.CoreV1Api(client)
        self._where = {"group": enums.API_GROUP, "version": enums.API_VERSION, "plural": _PLURAL}

    def apply(self, body: Object, *, dry_run: bool) -> Object:
        """Apply server-side: create, or change what we wrote before."""
        options: dict[str, object] = {"dry_run": "All"} if dry_run else {}
        metadata = body["metadata"]
        return _answer(
            self._custom.patch_namespaced_custom_object, **self._where, namespace=metadata["namespace"],
            name=metadata["name"], body=body, field_manager=_FIELD_MANAGER, field_validation="Strict",
            _content_type="application/apply-patch+yaml", **options,
        )  # fmt: skip

    def get(self, name: str) -> Object:
        return _answer(self._custom.get_namespaced_custom_object, **self._where, namespace=self.namespace, name=name)

    def runtime(self, kind: str, name: str) -> Object:
        where = {**self._where, "plural": f"{kind.lower()}s"}
        if kind == CLUSTER_KIND:
            return _answer(self._custom.get_cluster_custom_object, **where, name=name)
        return _answer(self._custom.get_namespaced_custom_object, **where, namespace=self.namespace, name=name)

    def jobs(self, selector: str) -> list[Object]:
        return _items(
            _answer(
                self._custom.list_namespaced_custom_object, **self._where, namespace=self.namespace,
                label_selector=selector,
            )
        )  # fmt: skip

    def patch(self, name: str, change: Object) -> Object:
        """Merge into a job."""
        return _answer(
            self._custom.patch_namespaced_custom_object, **self._where, namespace=self.namespace, name=name,
            body=change, field_manager=_FIELD_MANAGER, _content_type="application/merge-patch+json",
        )  # fmt: skip

    def delete(self, name: str) -> None:
        _answer(self._custom.delete_namespaced_custom_object, **self._where, namespace=self.namespace, name=name)

    def watch(self, name: str, version: str, *, seconds: int) -> Iterator[Object]:
        """Yield events until the server ends the watch. An expired version is an ApiError of status 410."""
        with _classified():
            yield from kubernetes.watch.Watch().stream(
                self._custom.list_namespaced_custom_object,
                **self._where,
                namespace=self.namespace,
                field_selector=f"metadata.name={name}",
                resource_version=version,
                timeout_seconds=seconds,
                # Longer than the watch: a connection that is dead, and does not say so, ends too.
                _request_timeout=(_LIMITS_S[0], seconds + _LIMITS_S[1]),
            )

    def pods(self, job: str) -> list[Object]:
        selector = f"{enums.API_GROUP}/job={job}"
        return _items(_answer(self._core.list_namespaced_pod, namespace=self.namespace, label_selector=selector))

    def events(self, job: str) -> list[Object]:
        about = f"involvedObject.kind={enums.KIND},involvedObject.name={job}"
        return _items(_answer(self._core.list_namespaced_event, namespace=self.namespace, field_selector=about))

    def log(self, pod: str, *, tail: int | None, follow: bool) -> Iterator[str]:
        options = {} if tail is None else {"tail_lines": tail}
        with _classified():
            answer = self._core.read_namespaced_pod_log(
                pod, self.namespace, container=_CONTAINER, timestamps=True, follow=follow, _preload_content=False,
                _request_timeout=(_LIMITS_S[0], None) if follow else _LIMITS_S, **options,
            )  # fmt: skip
            if answer.status != 200:
                raise errors.of_answer(answer.status, answer.data.decode("utf-8", errors="replace"))
            try:
                # A line may come in pieces.
                rest = b""
                for piece in answer.stream():
                    *lines, rest = (rest + piece).split(b"\n")
                    yield from (line.decode("utf-8", errors="replace") for line in lines)
                if rest:
                    yield rest.decode("utf-8", errors="replace")
            finally:
                answer.release_conn()


def _connect(kubeconfig: str | pathlib.Path | None, context: str | None) -> tuple[kubernetes.client.ApiClient, str]:
    """Return a client and the namespace of the context, or of the pod where there is no kubeconfig."""
    config = kubernetes.config
    try:
        if kubeconfig is None and context is None:
            with contextlib.suppress(config.ConfigException):
                settings = kubernetes.client.Configuration()
                config.load_incluster_config(client_configuration=settings)
                return kubernetes.client.ApiClient(settings), _POD_NAMESPACE.read_text().strip()
        # The library reads the variable once, when it is imported.
        path = os.environ.get("KUBECONFIG") if kubeconfig is None else str(kubeconfig)
        contexts, active = config.list_kube_config_contexts(path)
        chosen = active if context is None else next(each for each in contexts if each["name"] == context)
        client = config.new_client_from_config(path, context=context)
    except StopIteration:
        raise errors.ApiError(f"the kubeconfig has no context {context!r}") from None
    except (config.ConfigException, OSError) as error:
        raise errors.ApiError(f"cannot connect: {error}; name a kubeconfig, or run in a pod with an account") from error
    return client, str(chosen["context"].get("namespace") or "default")


_POD_NAMESPACE = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@contextlib.contextmanager
def _classified() -> Iterator[None]:
    try:
        yield
    except kubernetes.client.ApiException as error:
        raise errors.of_answer(int(error.status or 0), str(error.body or error.reason or "")) from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise errors.ApiError(f"the API server does not answer: {error}") from error


def _answer(request: Callable[..., Any], **arguments: object) -> Object:
    """Return the object that a request is answered with. As it is: the client's own reading drops what it created."""
    with _classified():
        answer = request(**arguments, _preload_content=False, _request_timeout=_LIMITS_S)
        text = answer.data.decode("utf-8", errors="replace")
        if not 200 <= answer.status < 300:
            raise errors.of_answer(answer.status, text)
    body: Object = json.loads(text)
    return body


def _items(answer: Object) -> list[Object]:
    items: list[Object] = answer["items"]
    return items
