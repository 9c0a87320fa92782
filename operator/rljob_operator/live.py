"""The cluster as a pass sees it: reads from the cache, or live where that is asked; writes through the client.

Every answer to a write goes into the cache at once, so the next pass never plans against what it changed itself. A
refusal that only a change of the spec can mend is kept, shown as a condition and not tried again before.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn, Protocol

import pydantic

from rljob_api import errors, sentences
from rljob_api.conditions import ConditionType
from rljob_api.job import RLJob
from rljob_api.job_status import JobStatus
from rljob_operator import kinds, trimming, unreadable
from rljob_operator.cache import Cache, key_of
from rljob_operator.cluster import ApiError, Client, Object
from rljob_operator.kinds import Kind
from rljob_operator.listing import Lister
from rljob_operator.model import Annotate, Apply, Delete, Observed, Refusal, Report, Scale, ref_of

# How long a refusal that may end by itself (missing rights, a taken name) stands before the next try.
_TRY_AGAIN_S = 60.0
_ORDER: Mapping[str, int] = {str(kind): number for number, kind in enumerate(ConditionType)}


# Called with what was seen and the status that is written now; with the key and the kind of a child.
OnStatus = Callable[[Observed, JobStatus], Awaitable[None]]
OnApplied = Callable[[str, str], None]


async def _ignore(seen: Observed, status: JobStatus) -> None:
    """The listener of nobody."""


def _ignore_applied(key: str, kind: str) -> None:
    """The listener of nobody."""


class Coordinators(Protocol):
    """What was heard of the coordinators, by uid of the job."""

    def report_of(self, uid: str) -> Report | None:
        """Return the last report; None before the first."""

    def asking_since(self, uid: str) -> float | None:
        """Return since when there is no answer, unix seconds; None while there is."""


class OutOfDateError(Exception):
    """What a pass rested on has changed; the pass is made anew."""


async def nothing_to_certify(job: RLJob) -> None:
    """For jobs in plain text."""


class LiveCluster:
    """Implements `reconcile.Cluster`. `coordinators` knows what each said last."""

    def __init__(
        self, *, client: Client, cache: Cache, lister: Lister, coordinators: Coordinators,
        clock: Callable[[], float], on_status: OnStatus = _ignore, on_applied: OnApplied = _ignore_applied,
        certify: Callable[[RLJob], Awaitable[None]] = nothing_to_certify,
    ) -> None:  # fmt: skip
        """Keep the parts. on_status: called after a status was written; on_applied: after a child was. certify: makes
        the certificates of a job be there, before anything makes its pods.
        """
        self._client, self._cache, self._lister = client, cache, lister
        self._on_status, self._on_applied = on_status, on_applied
        self._coordinators, self._clock, self._certify = coordinators, clock, certify
        self._refusals: dict[str, Refusal] = {}

    async def observe(self, key: str, *, live: bool) -> Observed | None:
        """Return what is known of a job; None if it is gone or cannot be read. Raises ApiError."""
        if live:
            await self._lister.refresh(key)
        kept = self._cache.job(key)
        if kept is None:
            return None
        try:
            job = _job(kept.load())
        except pydantic.ValidationError as error:
            await self._say_unreadable(kept.load(), error)
            return None
        return Observed(
            job=job,
            version=kept.version,
            deleting=kept.deleting,
            children=self._cache.children(key, kept.uid),
            pods=self._cache.pods(key, kept.uid),
            report=self._coordinators.report_of(kept.uid),
            asking_since=self._coordinators.asking_since(kept.uid),
            refusal=self._refusal(job),
        )

    def forget(self, uid: str) -> None:
        """Let go of what is kept of a job that is gone."""
        self._refusals.pop(uid, None)

    def _refusal(self, job: RLJob) -> Refusal | None:
        known = self._refusals.get(job.metadata.uid)
        if known is None or known.generation == job.metadata.generation:
            return known
        del self._refusals[job.metadata.uid]
        return None

    async def _say_unreadable(self, body: bytes, error: pydantic.ValidationError) -> None:
        raw = json.loads(body)
        problems = sentences.explain_errors(error, document=raw, model=RLJob)
        status = unreadable.status_of(raw, problems, now=self._clock())
        if status is not None:
            await self._send_status(raw["metadata"], status)

    async def write_status(self, seen: Observed, status: JobStatus) -> None:
        """Write the status; nothing happens if the job was deleted or replaced. Raises ApiError, OutOfDateError."""
        metadata = seen.job.metadata
        body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        own = {"namespace": metadata.namespace, "name": metadata.name, "uid": metadata.uid}
        # It rests on the status that was seen: another operator's since then is history that must not be overwritten.
        await self._send_status({**own, "resourceVersion": str(seen.version)}, body)
        await self._on_status(seen, status)

    async def _send_status(self, metadata: Mapping[str, str], status: Object) -> None:
        own = {key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion")}
        kind = kinds.RLJOB
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": own, "status": status}
        try:
            self._cache.put(kind, await self._client.apply_status(kind, own["namespace"], body))
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            key = key_of(own["namespace"], own["name"])
            await self._look(kind, own["namespace"], own["name"], own["uid"], key)
            kept = self._cache.job(key)
            # Deleted or replaced: nobody waits for this status. Else it is history, to be written before its acts.
            if kept is not None and kept.uid == own["uid"]:
                raise OutOfDateError(str(error)) from error

    async def apply(self, seen: Observed, action: Apply) -> None:
        """Create or change a child. Raises ApiError, OutOfDateError."""
        await self._certified(seen)
        ref, namespace = ref_of(action.manifest), seen.job.metadata.namespace
        kind = kinds.BY_NAME[ref.kind]
        if not action.uid:
            await self._require_free_name(seen, kind, ref.name)
        body = _with_uid(action.manifest, action.uid)
        try:
            self._cache.put(kind, await self._client.apply(kind, namespace, body))
        except ApiError as error:
            if error.status == 409:
                await self._look(kind, namespace, ref.name, action.uid, _key(seen))
                raise OutOfDateError(f"{ref.kind} {ref.name} was replaced") from error
            self._refused(seen, error)
        else:
            self._refusals.pop(seen.job.metadata.uid, None)
            self._on_applied(_key(seen), ref.kind)

    async def _certified(self, seen: Observed) -> None:
        """See to the certificates that pods of the job mount, before anything makes pods."""
        try:
            await self._certify(seen.job)
        except ApiError as error:
            self._refused(seen, error)
        except errors.ClusterError as error:
            self._keep(seen, "NameConflict", str(error), again_after_s=_TRY_AGAIN_S)

    async def _require_free_name(self, seen: Observed, kind: Kind, name: str) -> None:
        """Raise OutOfDateError if something has the name: another's object of it is never ours to change (3.7)."""
        found = await self._client.get(kind, seen.job.metadata.namespace, name)
        if found is None:
            return
        if trimming.controller_of(found["metadata"]) == seen.job.metadata.uid:
            self._cache.put(kind, found)
            raise OutOfDateError(f"{kind.kind} {name} is there already")
        message = f"{kind.kind} {name} exists and is not this job's: delete it, or give the job another name"
        self._keep(seen, "NameConflict", message, again_after_s=_TRY_AGAIN_S)

    def _refused(self, seen: Observed, error: ApiError) -> NoReturn:
        """Keep a refusal that trying again does not mend and raise OutOfDateError; raise the error where it may."""
        if error.status == 403:
            self._keep(seen, "Forbidden", str(error), again_after_s=_TRY_AGAIN_S)
        elif error.status in (400, 422):
            self._keep(seen, "ChildRejected", str(error), again_after_s=None)
        else:
            raise error

    def _keep(self, seen: Observed, reason: str, message: str, *, again_after_s: float | None) -> NoReturn:
        again_at = None if again_after_s is None else self._clock() + again_after_s
        metadata = seen.job.metadata
        self._refusals[metadata.uid] = Refusal(
            reason=reason, message=message, generation=metadata.generation, again_at=again_at
        )
        raise OutOfDateError(message)

    async def scale(self, seen: Observed, action: Scale) -> None:
        """Set a workload's replicas; nothing happens if it is gone. Raises ApiError."""
        if action.replicas:
            await self._certified(seen)
        body: Object = {"metadata": {"uid": action.uid}, "spec": {"replicas": action.replicas}}
        await self._merge(seen, action.ref.kind, action.ref.name, action.uid, body)

    async def annotate(self, seen: Observed, action: Annotate) -> None:
        """Set or remove annotations; nothing happens if the object is gone. Raises ApiError."""
        body: Object = {"metadata": {"uid": action.uid, "annotations": dict(action.annotations)}}
        await self._merge(seen, action.ref.kind, action.ref.name, action.uid, body)

    async def _merge(self, seen: Observed, kind_name: str, name: str, uid: str, body: Object) -> None:
        kind, namespace = kinds.BY_NAME[kind_name], seen.job.metadata.namespace
        try:
            self._cache.put(kind, await self._client.merge(kind, namespace, name, body))
        except ApiError as error:
            if error.status not in (404, 409, 422):
                raise
            await self._look(kind, namespace, name, uid, _key(seen))

    async def delete(self, seen: Observed, action: Delete) -> None:
        """Delete an object; nothing happens if it is gone. Raises ApiError."""
        kind, namespace, name = kinds.BY_NAME[action.ref.kind], seen.job.metadata.namespace, action.ref.name
        try:
            answer = await self._client.delete(kind, namespace, name, uid=action.uid, grace_s=action.grace_s)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            await self._look(kind, namespace, name, action.uid, _key(seen))
            return
        if answer.get("kind") == kind.kind and "deletionTimestamp" in answer.get("metadata", {}):
            self._cache.put(kind, answer)
        else:
            self._cache.forget(kind, _key(seen), name, action.uid)

    async def _look(self, kind: Kind, namespace: str, name: str, uid: str, key: str) -> None:
        """Bring the cache up to date on one object that is not what it was thought to be."""
        found = await self._client.get(kind, namespace, name)
        if uid and (found is None or found["metadata"]["uid"] != uid):
            self._cache.forget(kind, key, name, uid)
        if found is not None:
            self._cache.put(kind, found)


def _key(seen: Observed) -> str:
    return key_of(seen.job.metadata.namespace, seen.job.metadata.name)


def _with_uid(manifest: Mapping[str, Any], uid: str) -> Mapping[str, Any]:
    return {**manifest, "metadata": {**manifest["metadata"], "uid": uid}} if uid else manifest


def _job(body: bytes) -> RLJob:
    """Return a job with our conditions in our order: others' are theirs. Raises ValidationError."""
    job = RLJob.model_validate_json(body)
    if job.status is None:
        return job
    own = sorted((one for one in job.status.conditions if one.type in _ORDER), key=lambda one: _ORDER[one.type])
    return job.model_copy(update={"status": job.status.model_copy(update={"conditions": tuple(own)})})
