"""An API server in memory, over real HTTP on loopback. A fake: for the operator's wiring and for faults on any call.

It keeps uids, resource versions, generations, label selectors, watches, uid preconditions and deletion by owner. It has
no schema, no defaults, no field ownership: an apply replaces spec, data and status. Those are proved on a real one.
Its controllers make pods for workloads and end a Job with its pods.
"""

import asyncio
import contextlib
import copy
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

from aiohttp import web

from rljob_api.validation import crd
from rljob_operator import clock
from rljob_operator.kube import kinds
from rljob_operator.kube.kinds import Kind
from rljob_operator.pki.manager import SECRET
from rljob_operator.telemetry.health import between_connections

Object = dict[str, Any]
_NAMESPACE = Kind("Namespace", "", "v1", "namespaces")
_CRD = Kind("CustomResourceDefinition", "apiextensions.k8s.io", "v1", "customresourcedefinitions")
SERVED = (*kinds.BY_NAME.values(), SECRET, _NAMESPACE, _CRD)
# Returns the HTTP status of a refusal for a request, 0 to cut the connection, or None to serve it.
Fault = Callable[[web.Request], int | None]


# What a watch says that begins with all there is: at the end of it, and on a server whose etcd is too old for it.
_LISTED = {"type": "BOOKMARK", "object": {"metadata": {"annotations": {"k8s.io/initial-events-end": "true"}}}}
_NO_STREAM = {"type": "ERROR", "object": {"kind": "Status", "status": "Failure", "code": 500}}


class FakeApi:
    """Objects by plural, namespace and name."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.writes: list[str] = []
        self.streams_lists = False
        # Faults come to those who ask at `door`; what tests ask at the other one is always served.
        self.fault: Fault = lambda request: None
        self.door = 0
        self._numbers = itertools.count(100)
        self._log: list[tuple[int, str, str, Object]] = []
        self._changed = asyncio.Condition()
        self._by_plural = {kind.plural: kind for kind in SERVED}
        self.app = web.Application()
        self.app.router.add_get("/api", self._core)
        self.app.router.add_get("/apis", self._groups)
        self.app.router.add_get("/version", self._version)
        self.app.router.add_get(f"/openapi/v3/apis/{kinds.RLJOB.api_version}", self._schemas)
        for root in ("/api/{version}", "/apis/{group}/{version}"):
            self.app.router.add_get(root, self._resources)
            self.app.router.add_get(root + "/{plural}", self._list)
            named = root + "/namespaces/{namespace}/{plural}"
            self.app.router.add_get(named, self._list)
            self.app.router.add_post(named, self._post)
            self.app.router.add_get(named + "/{name}", self._get)
            self.app.router.add_patch(named + "/{name}", self._patch)
            self.app.router.add_patch(named + "/{name}/{subresource}", self._patch)
            self.app.router.add_delete(named + "/{name}", self._delete)

    def of(self, plural: str) -> list[Object]:
        """Return all objects of a kind, by name."""
        return [found for (kind, _, _), found in sorted(self.objects.items()) if kind == plural]

    # Discovery.

    async def _core(self, _: web.Request) -> web.Response:
        return web.json_response({"kind": "APIVersions", "versions": ["v1"]})

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"major": "1", "minor": "36"})

    async def _schemas(self, _: web.Request) -> web.Response:
        kind = kinds.RLJOB
        meant = {"group": kind.group, "version": kind.version, "kind": kind.kind}
        schema = {**crd.root_schema(), "x-kubernetes-group-version-kind": [meant]}
        return web.json_response({"openapi": "3.0.0", "components": {"schemas": {kind.kind: schema}}})

    async def _groups(self, _: web.Request) -> web.Response:
        groups = []
        for name in sorted({kind.group for kind in SERVED if kind.group}):
            versions = sorted({kind.version for kind in SERVED if kind.group == name})
            each = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
            groups.append({"name": name, "versions": each, "preferredVersion": each[0]})
        return web.json_response({"kind": "APIGroupList", "groups": groups})

    async def _resources(self, request: web.Request) -> web.Response:
        group, version = request.match_info.get("group", ""), request.match_info["version"]
        rows = [
            {
                "name": kind.plural,
                "singularName": kind.kind.lower(),
                "kind": kind.kind,
                "namespaced": kind not in (_NAMESPACE, _CRD, kinds.CLUSTER_RUNTIME),
                "verbs": ["get", "list", "watch", "create", "patch", "delete"],
            }
            for kind in SERVED
            if (kind.group, kind.version) == (group, version)
        ]
        return web.json_response({"kind": "APIResourceList", "resources": rows})

    # Reads.

    async def _list(self, request: web.Request) -> web.StreamResponse:
        plural, namespace = request.match_info["plural"], request.match_info.get("namespace")
        selector = _selector(request.query.get("labelSelector", ""))
        if "sendInitialEvents" in request.query:
            return web.Response(body=json.dumps(_LISTED if self.streams_lists else _NO_STREAM).encode() + b"\n")
        if request.query.get("watch"):
            return await self._watch(request, plural, namespace, selector)
        if refused := self._refusal(request):
            return refused
        items = [found for found in self.of(plural) if _matches(found, namespace, selector)]
        return web.json_response({"kind": "List", "metadata": {"resourceVersion": str(self._now())}, "items": items})

    async def _watch(
        self, request: web.Request, plural: str, namespace: str | None, selector: Mapping[str, str | None]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        since = int(request.query.get("resourceVersion") or 0)
        with contextlib.suppress(ConnectionError):
            while True:
                for version, kind, what, found in list(self._log):
                    if version > since and kind == plural and _matches(found, namespace, selector):
                        await response.write(json.dumps({"type": what, "object": found}).encode() + b"\n")
                since = max(since, self._now())
                async with self._changed:
                    await self._changed.wait_for(lambda: self._now() > since)  # noqa: B023  # read at once
        return response

    async def _get(self, request: web.Request) -> web.Response:
        if refused := self._refusal(request):
            return refused
        found = self.objects.get(self._key(request))
        return web.json_response(found) if found is not None else _refuse(404)

    # Writes.

    async def _post(self, request: web.Request) -> web.Response:
        self.writes.append(f"post {request.match_info['plural']}")
        return self._refusal(request) or web.json_response(await request.json(), status=201)

    async def _patch(self, request: web.Request) -> web.Response:
        subresource = request.match_info.get("subresource", "")
        plural, name = request.match_info["plural"], request.match_info["name"]
        self.writes.append(f"patch {plural}{'/' + subresource if subresource else ''} {name}")
        if refused := self._refusal(request):
            return refused
        body, key = json.loads(await request.read()), self._key(request)
        known = self.objects.get(key)
        uid = body.get("metadata", {}).get("uid")
        if uid and (known is None or known["metadata"]["uid"] != uid):
            return _refuse(404 if known is None and subresource else 409)
        version = body.get("metadata", {}).get("resourceVersion")
        if version and known is not None and known["metadata"]["resourceVersion"] != version:
            return _refuse(409)
        applies = "apply-patch" in request.headers["Content-Type"]
        if known is None:
            return _refuse(404) if subresource or not applies else web.json_response(await self._create(key, body))
        return web.json_response(await self._change(key, known, body, applies=applies, subresource=subresource))

    async def _create(self, key: tuple[str, str, str], body: Object) -> Object:
        made = copy.deepcopy(body)
        made["metadata"] |= {
            "namespace": key[1],
            "uid": f"uid-{next(self._numbers)}",
            "generation": 1,
            "creationTimestamp": clock.to_timestamp(time.time()),
        }
        return await self.store(key[0], made, "ADDED")

    async def _change(
        self, key: tuple[str, str, str], known: Object, body: Object, *, applies: bool, subresource: str
    ) -> Object:
        changed = copy.deepcopy(known)
        fields = ("status",) if subresource == "status" else ("spec", "data", "metadata")
        for field in fields:
            if field not in body:
                continue
            whole = applies and field != "metadata"
            changed[field] = body[field] if whole else _merged(changed.get(field) or {}, body[field])
        if changed == known:
            return known
        if changed.get("spec") != known.get("spec"):
            changed["metadata"]["generation"] += 1
        return await self.store(key[0], changed, "MODIFIED")

    async def store(self, plural: str, found: Object, what: str = "MODIFIED") -> Object:
        """Keep an object as its next version and show watchers."""
        version = next(self._numbers)
        found["metadata"]["resourceVersion"] = str(version)
        self.objects[(plural, found["metadata"]["namespace"], found["metadata"]["name"])] = found
        await self._tell(version, plural, what, found)
        return found

    async def _delete(self, request: web.Request) -> web.Response:
        self.writes.append(f"delete {request.match_info['plural']} {request.match_info['name']}")
        if refused := self._refusal(request):
            return refused
        key = self._key(request)
        known, options = self.objects.get(key), json.loads(await request.read() or b"{}")
        if known is None:
            return _refuse(404)
        if options.get("preconditions", {}).get("uid") not in (None, known["metadata"]["uid"]):
            return _refuse(409)
        await self.drop(key)
        return web.json_response({"kind": "Status", "status": "Success"})

    async def drop(self, key: tuple[str, str, str]) -> None:
        """Remove an object and what it owns."""
        gone = self.objects.pop(key)
        gone = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(next(self._numbers))}}
        await self._tell(int(gone["metadata"]["resourceVersion"]), key[0], "DELETED", gone)
        uid = gone["metadata"]["uid"]
        for other, found in list(self.objects.items()):
            if other in self.objects and uid in _owners(found):
                await self.drop(other)

    async def _tell(self, version: int, plural: str, what: str, found: Object) -> None:
        self._log.append((version, plural, what, copy.deepcopy(found)))
        async with self._changed:
            self._changed.notify_all()

    # Controllers.

    async def control(self) -> None:
        """Let workloads have their pods, and Jobs end with theirs."""
        for plural, count in (("statefulsets", "replicas"), ("deployments", "replicas"), ("jobs", "completions")):
            for workload in self.of(plural):
                await self._make_pods(workload, int(workload["spec"].get(count, 1)), is_job=plural == "jobs")
        for job in self.of("jobs"):
            await self._end_job(job)
        await self._collect()

    async def _collect(self) -> None:
        """Drop what names an owner that is gone: someone may have made it after its owner went."""
        alive = {found["metadata"]["uid"] for found in self.objects.values()}
        for key, found in list(self.objects.items()):
            if key in self.objects and not set(_owners(found)) <= alive:
                await self.drop(key)

    async def _make_pods(self, workload: Object, wanted: int, *, is_job: bool) -> None:
        metadata = workload["metadata"]
        own = [pod for pod in self.of("pods") if metadata["uid"] in _owners(pod)]
        for pod in own[wanted:]:
            await self.drop(("pods", metadata["namespace"], pod["metadata"]["name"]))
        # A Job of one attempt never makes a pod twice.
        if is_job and (own or _ended(workload)):
            return
        taken = {pod["metadata"]["name"] for pod in own}
        owner = {"kind": workload["kind"], "name": metadata["name"], "uid": metadata["uid"], "controller": True}
        free = (name for index in itertools.count() if (name := f"{metadata['name']}-{index}") not in taken)
        for name in itertools.islice(free, max(0, wanted - len(own))):
            template = workload["spec"]["template"]
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "labels": template["metadata"]["labels"], "ownerReferences": [owner]},
                "spec": {},
            }
            await self._create(("pods", metadata["namespace"], name), pod)

    async def _end_job(self, job: Object) -> None:
        if _ended(job):
            return
        phases = [
            pod.get("status", {}).get("phase") for pod in self.of("pods") if job["metadata"]["uid"] in _owners(pod)
        ]
        kind = "Failed" if "Failed" in phases else "Complete" if phases and set(phases) == {"Succeeded"} else ""
        if kind:
            done = {**job, "status": {"conditions": [{"type": kind, "status": "True"}]}}
            await self.store("jobs", copy.deepcopy(done))

    def _refusal(self, request: web.Request) -> web.Response | None:
        transport = request.transport
        if transport is None or transport.get_extra_info("sockname")[1] != self.door:
            return None
        status = self.fault(request)
        if status == 0:
            transport.abort()
        return None if status is None else _refuse(status or 503)

    def _key(self, request: web.Request) -> tuple[str, str, str]:
        info = request.match_info
        return info["plural"], info["namespace"], info["name"]

    def _now(self) -> int:
        return self._log[-1][0] if self._log else 1


def _refuse(status: int) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "message": f"refused with {status}", "code": status}
    return web.json_response(body, status=status)


def _merged(old: Object, new: Object) -> Object:
    made = dict(old)
    for key, value in new.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = _merged(made.get(key) or {}, value) if isinstance(value, dict) else value
    return made


def _selector(text: str) -> dict[str, str | None]:
    """Return values by label; None where any will do."""
    parts = (part.partition("=") for part in text.split(",") if part)
    return {key: value if equals else None for key, equals, value in parts}


def _matches(found: Object, namespace: str | None, selector: Mapping[str, str | None]) -> bool:
    labels = found["metadata"].get("labels") or {}
    here = namespace is None or found["metadata"].get("namespace") == namespace
    return here and all(key in labels and value in (None, labels[key]) for key, value in selector.items())


def _owners(found: Object) -> Iterable[str]:
    return [owner["uid"] for owner in found["metadata"].get("ownerReferences") or ()]


def _ended(job: Object) -> bool:
    return bool((job.get("status") or {}).get("conditions"))


def kubeconfig(address: str) -> dict[str, object]:
    """Return what leads a program to an API server without users, at an address."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "fake", "cluster": {"server": address}}],
        "users": [{"name": "me", "user": {}}],
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me"}}],
        "current-context": "fake",
    }


@contextlib.asynccontextmanager
async def serving(api: FakeApi) -> AsyncIterator[tuple[str, str]]:
    """Yield two addresses of an API, the first with its faults, and let its controllers act a few times a second."""
    runner = web.AppRunner(api.app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    for _ in range(2):
        await web.TCPSite(runner, "127.0.0.1", 0).start()
    ports = [address[1] for address in runner.addresses]
    api.door = ports[0]
    acting = asyncio.create_task(_act(api))
    try:
        yield f"http://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}"
    finally:
        acting.cancel()
        async with between_connections():
            for site in list(runner.sites):
                await site.stop()
        await runner.cleanup()


async def _act(api: FakeApi) -> None:
    while True:
        await api.control()
        await asyncio.sleep(0.02)
