"""The operator's client without a server: objects by kind and name, and answers that a test prescribes. A fake."""

import copy
import itertools
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from rljob_api.validation import crd
from rljob_operator.kube import kinds
from rljob_operator.kube.client import ApiError
from rljob_operator.kube.kinds import Kind
from rljob_operator.model import Report

Object = dict[str, Any]


class FakeClient:
    """Records each request as "verb kind name"; `fail` maps such a record to an HTTP status that it gets."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.requests: list[str] = []
        self.fail: dict[str, int] = {}
        self.answered_at = 0.0
        self.api_groups = frozenset[str]()
        self.served: Object | None = crd.root_schema()
        self._versions = itertools.count(1)

    def hold(self, raw: Object, **metadata: object) -> Object:
        """Keep an object as its next version, as another hand would."""
        known = self.objects.get((raw["kind"], raw["metadata"]["name"]), {"metadata": {}})
        uid = known["metadata"].get("uid") or f"uid-{next(self._versions)}"
        version = {"uid": uid, "namespace": "team", "generation": 1, "resourceVersion": str(next(self._versions))}
        held = copy.deepcopy({**raw, "metadata": {**version, **known["metadata"], **raw["metadata"], **metadata}})
        held["metadata"]["resourceVersion"] = version["resourceVersion"]
        self.objects[(raw["kind"], raw["metadata"]["name"])] = held
        return held

    def _record(self, verb: str, kind: Kind, name: str) -> None:
        record = f"{verb} {kind.kind} {name}".strip()
        self.requests.append(record)
        if record in self.fail:
            raise ApiError(f"{verb} {kind.plural}: refused", status=self.fail[record])

    async def ping(self) -> None:
        self.requests.append("ping")
        if "ping" in self.fail:
            raise ApiError("no answer")
        self.answered_at = time.monotonic()

    async def groups(self) -> frozenset[str]:
        return self.api_groups

    async def schema(self, kind: Kind) -> Object | None:
        self._record("get", kind, "schema")
        return self.served

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        self._record("get", kind, name)
        return copy.deepcopy(self.objects.get((kind.kind, name)))

    async def pages(
        self, kind: Kind, namespace: str | None, *, selector: str = "", metadata_only: bool = False
    ) -> AsyncIterator[list[Object]]:
        self._record("list", kind, "")
        if f"list {kind.kind} in {namespace}" in self.fail:
            raise ApiError(f"list {kind.plural}: refused", status=self.fail[f"list {kind.kind} in {namespace}"])
        for (each, _), found in sorted(self.objects.items()):
            if kind is kinds.NAMESPACE and selector not in map("=".join, found["metadata"].get("labels", {}).items()):
                continue
            if each == kind.kind and namespace in (None, found["metadata"]["namespace"]):
                yield [copy.deepcopy(found)]

    async def list(
        self, kind: Kind, namespace: str | None, *, selector: str = "", metadata_only: bool = False
    ) -> list[Object]:
        return [found async for page in self.pages(kind, namespace, selector=selector) for found in page]

    async def apply(self, kind: Kind, namespace: str, body: Mapping[str, Any]) -> Object:
        self._record("apply", kind, body["metadata"]["name"])
        known = self.objects.get((kind.kind, body["metadata"]["name"]))
        uid = body["metadata"].get("uid")
        if uid and (known is None or known["metadata"]["uid"] != uid):
            raise ApiError("apply: uid mismatch", status=409)
        version = body["metadata"].get("resourceVersion")
        if version and known is not None and known["metadata"]["resourceVersion"] != version:
            raise ApiError("apply: the object has been modified", status=409)
        return copy.deepcopy(self.hold(dict(body)))

    async def apply_status(self, kind: Kind, namespace: str, body: Mapping[str, Any]) -> Object:
        name = body["metadata"]["name"]
        self._record("status", kind, name)
        known = self.objects.get((kind.kind, name))
        if known is None or known["metadata"]["uid"] != body["metadata"]["uid"]:
            raise ApiError("status: gone", status=404 if known is None else 409)
        if body["metadata"].get("resourceVersion", "") not in ("", known["metadata"]["resourceVersion"]):
            raise ApiError("status: the object has been modified", status=409)
        return copy.deepcopy(self.hold({**known, "status": body["status"]}))

    async def post_event(self, namespace: str, body: Object) -> None:
        self._record("post", kinds.EVENT, body["reason"])

    async def read_lease(self, namespace: str, name: str, *, timeout_s: float) -> Object | None:
        self._record("get", kinds.LEASE, name)
        return copy.deepcopy(self.objects.get((kinds.LEASE.kind, name)))

    async def write_lease(self, namespace: str, body: Object, *, timeout_s: float) -> Object:
        name, version = body["metadata"]["name"], body["metadata"].get("resourceVersion", "")
        self._record("write", kinds.LEASE, name)
        known = self.objects.get((kinds.LEASE.kind, name))
        if version != ("" if known is None else known["metadata"]["resourceVersion"]):
            raise ApiError("lease: the object has been modified", status=409)
        return copy.deepcopy(self.hold(body))

    async def merge(self, kind: Kind, namespace: str, name: str, body: Object, *, subresource: str = "") -> Object:
        self._record("merge", kind, name)
        known = self.objects.get((kind.kind, name))
        if known is None:
            raise ApiError("merge: gone", status=404)
        changed = copy.deepcopy(known)
        changed["spec"] = {**known.get("spec", {}), **body.get("spec", {})}
        for part in ("labels", "annotations"):
            if part in body.get("metadata", {}):
                changed["metadata"][part] = {**known["metadata"].get(part, {}), **body["metadata"][part]}
        return copy.deepcopy(self.hold(changed))

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str, grace_s: int | None) -> Object:
        self._record("delete", kind, name)
        known = self.objects.get((kind.kind, name))
        if known is None or known["metadata"]["uid"] != uid:
            raise ApiError("delete: gone", status=404 if known is None else 409)
        del self.objects[(kind.kind, name)]
        return {"kind": "Status"}


class Unheard:
    """Coordinators of which nothing was heard. A fake."""

    def report_of(self, uid: str) -> Report | None:
        return None

    def silent_since(self, uid: str) -> float | None:
        return None
