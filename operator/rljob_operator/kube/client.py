"""The Kubernetes client: the one module that imports it. Requests, their limits, and errors with a status.

Objects go in and come out as plain mappings. Children and status are written by server-side apply, whole intents under
a field manager of ours; nothing is retried here but what the server asks to send again later (429).
"""

import asyncio
import dataclasses
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import aiohttp
import pydantic_core
from kubernetes.aio import config as kubernetes_config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.dynamic.client import DynamicClient
from kubernetes.aio.dynamic.exceptions import DynamicApiError

from rljob_api import errors
from rljob_operator.clock import TokenBucket
from rljob_operator.kube.fence import ClosedFenceError, Fence, open_fence
from rljob_operator.kube.kinds import EVENT, LEASE, Kind

Object = dict[str, Any]
CHILD_MANAGER, STATUS_MANAGER = "rljob-operator", "rljob-operator-status"
PAGE = 500
_GROUPS, _VERSION = Kind("APIGroupList", "", "v1", "apis"), Kind("Version", "", "v1", "version")
_SCHEMAS = Kind("OpenAPI", "", "v3", "openapi")
_TIMEOUT_S = 30.0
_MOST_RETRIES = 3
_MOST_RETRY_AFTER_S = 10.0
_READ_AGAIN_S = 0.1
# No answer, a list that expired, too many requests, the server's own failures.
_PASSING = frozenset({0, 410, 429, 500, 502, 503, 504})
# A field or a selector that the server does not know, or does not allow.
_NO_STREAMS = frozenset({400, 403, 422})
_ALL_SENT = b"k8s.io/initial-events-end"
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

# Called with verb, resource and HTTP status of each answer; 0 for none.
OnAnswer = Callable[[str, str, int], None]


class ApiError(errors.ClusterError):
    """The API server refused or did not answer. `status`: of HTTP, 0 without an answer."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class NotLeadingError(ApiError):
    """Another process leads, or may by now: nothing was sent, or what was on its way was given up."""


@dataclasses.dataclass(frozen=True, slots=True)
class ApiConnection:
    """A connection to the API server: files of PEM, a token, or the account of the pod that this runs in."""

    configuration: Configuration
    in_cluster: bool

    @property
    def server(self) -> str:
        return str(self.configuration.host)

    @property
    def ca_file(self) -> str | None:
        return self.configuration.ssl_ca_cert or None

    @property
    def pair(self) -> tuple[str | None, str | None]:
        """Return the files of the client's certificate and key."""
        return self.configuration.cert_file or None, self.configuration.key_file or None

    @property
    def token(self) -> str | None:
        """Return the bearer token of a kubeconfig that has one."""
        header = str(self.configuration.api_key.get("BearerToken", ""))
        return header.removeprefix("Bearer ") or None


async def connect(kubeconfig: str | None) -> ApiConnection:
    """Return the way that a kubeconfig says, or that of the pod's own account. Raises ClusterError."""
    configuration = Configuration()
    try:
        if kubeconfig is None:
            kubernetes_config.load_incluster_config(client_configuration=configuration)
        else:
            await kubernetes_config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
    except kubernetes_config.ConfigException as error:
        raise errors.ClusterError(f"cannot connect to the API server: {error}") from error
    return ApiConnection(configuration, in_cluster=kubeconfig is None)


def _ignore(verb: str, plural: str, status: int) -> None:
    pass


class Client:
    """Verbs on objects of any kind."""

    def __init__(
        self,
        connection: ApiConnection,
        *,
        qps: float,
        burst: float,
        on_answer: OnAnswer = _ignore,
        fence: Fence | None = None,
        agent: str = CHILD_MANAGER,
    ) -> None:
        """Open nothing before the first request; call it inside a running event loop, and `close` at the end.

        fence: what lets changes through; all of them without one. agent: what the API server's audit log calls it.
        """
        self._api, self._on_answer = ApiClient(connection.configuration), on_answer
        self._api.user_agent = agent
        # What is near is sent faster than it is packed: a list of all pods would keep both sides busy for seconds.
        self._api.set_default_header("Accept-Encoding", "identity")
        self._fence = open_fence() if fence is None else fence
        self._bucket = TokenBucket(per_s=qps, burst=burst)
        # Discovery is not awaited: the paths of our kinds are known.
        self._dynamic = DynamicClient(self._api)
        self.answered_at = float("-inf")

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Return an object; None if there is none. Raises ApiError."""
        try:
            return await self._send("get", kind, kind.path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def ping(self) -> None:
        """Ask for the least that there is, once. Raises ApiError if no one answers."""
        try:
            await self._once("get", _VERSION, "/version", {})
        except _AskedToWaitError:
            return  # That is an answer too.

    async def groups(self) -> frozenset[str]:
        """Return the API groups that are served, and their versions as `group/version`. Raises ApiError."""
        response = await self._send("get", _GROUPS, "/apis")
        groups: list[Object] = response.get("groups") or []
        versions = (version["groupVersion"] for group in groups for version in group.get("versions") or ())
        return frozenset((*(str(group["name"]) for group in groups), *map(str, versions)))

    async def schema(self, kind: Kind) -> Object | None:
        """Return the schema of a kind as it is served; None if it is not. Raises ApiError.

        Every account may ask for it, also one whose rights end with its namespaces.
        """
        try:
            response = await self._send("get", _SCHEMAS, f"/openapi/v3/apis/{kind.api_version}")
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        meant = {"group": kind.group, "version": kind.version, "kind": kind.kind}
        schemas: list[Object] = list(((response.get("components") or {}).get("schemas") or {}).values())
        return next(
            (schema for schema in schemas if meant in (schema.get("x-kubernetes-group-version-kind") or ())), None
        )

    async def pages(
        self, kind: Kind, namespace: str | None, *, selector: str = "", metadata_only: bool = False
    ) -> AsyncIterator[Sequence[Object]]:
        """Yield all objects of a namespace, or of the cluster, as many at once as an answer brings. Raises ApiError.

        What is yielded is emptied when more is asked for.
        """
        params: Object = {"limit": PAGE, "label_selector": selector or None}
        if metadata_only:
            params["header_params"] = {"Accept": _METADATA_ONLY}
        while True:
            page = await self._send("list", kind, kind.path(namespace), **params)
            # Items of a list leave out what the list says.
            type_meta = {"apiVersion": kind.api_version, "kind": kind.kind}
            token = (page.get("metadata") or {}).get("continue")
            objects: list[Object] = [{**item, **type_meta} for item in page.get("items") or ()]
            del page
            yield objects
            # A dozen kinds are listed at once: none keeps what was read while it waits for more.
            objects.clear()
            if not token:
                return
            params["_continue"] = token

    async def list(
        self, kind: Kind, namespace: str | None, *, selector: str = "", metadata_only: bool = False
    ) -> list[Object]:
        """Return all objects of a namespace, or of the cluster, where they are few. Raises ApiError."""
        pages = self.pages(kind, namespace, selector=selector, metadata_only=metadata_only)
        return [response async for page in pages for response in page]

    async def streams(self, kind: Kind, namespace: str | None) -> bool:
        """Return whether a watch may begin with all that is there (Kubernetes: streaming lists), by trying one.

        It is of an object that nothing can be called, so only the mark after the last one comes. Raises ApiError.
        """
        query = [("watch", "true"), ("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan")]
        query += [("allowWatchBookmarks", "true"), ("timeoutSeconds", "1"), ("fieldSelector", "metadata.name=-")]
        try:
            events = await self._read("watch", kind, kind.path(namespace), {"query_params": query})
        except _AskedToWaitError:
            return False
        except ApiError as error:
            if error.status in _NO_STREAMS:
                return False
            raise
        return _ALL_SENT in events

    async def apply(self, kind: Kind, namespace: str, body: Mapping[str, object]) -> Object:
        """Create or change an object by the whole of what we mean to own. Raises ApiError, as all changes do, and
        NotLeadingError where another process may lead.
        """
        return await self._apply(kind, namespace, body, manager=CHILD_MANAGER, subresource="")

    async def apply_status(self, kind: Kind, namespace: str, body: Mapping[str, object]) -> Object:
        """Write an object's status. Raises ApiError."""
        return await self._apply(kind, namespace, body, manager=STATUS_MANAGER, subresource="status")

    async def _apply(
        self, kind: Kind, namespace: str, body: Mapping[str, object], *, manager: str, subresource: str
    ) -> Object:
        metadata = body["metadata"]
        assert isinstance(metadata, Mapping), "every object has metadata"
        path = kind.path(namespace, str(metadata["name"]), subresource=subresource)
        content = "application/apply-patch+yaml"
        return await self._change(
            namespace,
            "patch",
            kind,
            path,
            body=dict(body),
            content_type=content,
            field_manager=manager,
            force_conflicts=True,
        )

    async def merge(self, kind: Kind, namespace: str, name: str, body: Object, *, subresource: str = "") -> Object:
        """Change single fields. Raises ApiError."""
        path, content = kind.path(namespace, name, subresource=subresource), "application/merge-patch+json"
        return await self._change(
            namespace, "patch", kind, path, body=body, content_type=content, field_manager=CHILD_MANAGER
        )

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str, grace_s: int | None) -> Object:
        """Delete the object of that uid and no other; what it owns goes in the background. Raises ApiError."""
        options: Object = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        return await self._change(namespace, "delete", kind, kind.path(namespace, name), body=options)

    async def failures(self, kind: Kind, namespace: str, name: str, uid: str, *, reason: str) -> str:
        """Return the last Event of a reason that reports on an object, empty if there is none. Raises ApiError."""
        about = {"regarding.kind": kind.kind, "regarding.name": name, "regarding.uid": uid, "reason": reason}
        selector = ",".join(f"{key}={value}" for key, value in about.items())
        response = await self._send("list", EVENT, EVENT.path(namespace), field_selector=selector, limit=PAGE)
        items: list[Object] = response.get("items") or []
        return str(max(items, key=_told_at)["note"]) if items else ""

    async def post_event(self, namespace: str, body: Object) -> None:
        """Raises ApiError."""
        await self._change(namespace, "post", EVENT, EVENT.path(namespace), body=body)

    async def read_lease(self, namespace: str, name: str, *, timeout_s: float) -> Object | None:
        """Return a Lease; None if there is none. Raises ApiError. Leases wait for no other request."""
        try:
            return await self._lease("get", LEASE.path(namespace, name), _request_timeout=timeout_s)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def write_lease(self, namespace: str, body: Object, *, timeout_s: float) -> Object:
        """Create a Lease, or replace it in the version that its metadata names. Raises ApiError."""
        name = body["metadata"]["name"] if body["metadata"].get("resourceVersion") else None
        path = LEASE.path(namespace, name)
        return await self._lease("put" if name else "post", path, body=body, _request_timeout=timeout_s)

    async def _lease(self, verb: str, path: str, **params: Any) -> Object:
        try:
            return await self._once(verb, LEASE, path, params)
        except _AskedToWaitError as error:
            raise ApiError(str(error), status=429) from error

    async def close(self) -> None:
        await self._api.close()

    async def _change(self, namespace: str, verb: str, kind: Kind, path: str, **params: Any) -> Object:
        try:
            async with self._fence.writing(namespace):
                return await self._send(verb, kind, path, **params)
        except ClosedFenceError as error:
            raise NotLeadingError(f"{verb} {kind.plural}: {error}") from error

    async def _send(self, verb: str, kind: Kind, path: str, **params: Any) -> Object:
        for attempt in range(_MOST_RETRIES + 1):
            await asyncio.sleep(self._bucket.take(time.monotonic()))
            try:
                return await self._once(verb, kind, path, dict(params))
            except _AskedToWaitError as error:
                if attempt == _MOST_RETRIES:
                    raise ApiError(str(error), status=429) from error
                await asyncio.sleep(error.seconds)
            except ApiError as error:
                # A read may be repeated as it is; a write is planned again.
                if attempt == _MOST_RETRIES or verb not in ("get", "list") or error.status not in _PASSING:
                    raise
                await asyncio.sleep(_READ_AGAIN_S * 2.0**attempt)
        raise AssertionError("the last attempt returns or raises")

    async def _once(self, verb: str, kind: Kind, path: str, params: Object) -> Object:
        response: Object = pydantic_core.from_json(await self._read(verb, kind, path, params))
        return response

    async def _read(self, verb: str, kind: Kind, path: str, params: Object) -> bytes:
        method = "get" if verb in ("list", "watch") else verb
        status = 0
        try:
            params = {"_request_timeout": _TIMEOUT_S, **params}
            answer = await self._dynamic.request(method, path, serialize=False, **params)
            status = answer.status
            response: bytes = await answer.read()
        except DynamicApiError as error:
            status = int(error.status or 0)
            raise _translated(error, verb, kind) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(f"{verb} {kind.plural}: no answer: {type(error).__name__}") from error
        finally:
            resource = f"{kind.plural}/status" if path.endswith("/status") else kind.plural
            self._on_answer(verb, resource, status)
            if status:
                self.answered_at = time.monotonic()
        return response


def _told_at(event: Mapping[str, Any]) -> str:
    """Return when an Event was reported last, as text that sorts by time."""
    series = event.get("series") or {}
    return str(series.get("lastObservedTime") or event.get("deprecatedLastTimestamp") or event.get("eventTime") or "")


class _AskedToWaitError(Exception):
    """The server wants the request later."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


def _translated(error: DynamicApiError, verb: str, kind: Kind) -> Exception:
    try:
        message_text = json.loads(error.body or "{}").get("message") or error.reason
    except (ValueError, AttributeError):
        message_text = error.reason
    message = f"{verb} {kind.plural}: {message_text}"
    wait = (error.headers or {}).get("Retry-After")
    if error.status == 429 and wait is not None and str(wait).isdigit():
        return _AskedToWaitError(message, min(_MOST_RETRY_AFTER_S, float(wait)))
    return ApiError(message, status=int(error.status or 0))
