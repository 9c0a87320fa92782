"""The cluster as a pass sees it: reads from the cache, or live where that is asked; writes through the client.

Every answer to a write goes into the cache at once, so the next pass never plans against what it changed itself. What
the API server refuses is kept by child and returned: the pass continues with the other children.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import pydantic

from rljob_api import errors
from rljob_api.conditions import ConditionType
from rljob_api.manifest.job import RLJob
from rljob_api.manifest.status import JobStatus
from rljob_api.validation import messages, runtimes
from rljob_operator.kube import kinds, projection
from rljob_operator.kube.cache import Cache, key_of
from rljob_operator.kube.client import ApiError, Client, Object
from rljob_operator.kube.kinds import Kind
from rljob_operator.kube.resync import Lister
from rljob_operator.model import (
    POD_MAKERS,
    TRAINER_JOB,
    Annotate,
    Apply,
    Child,
    Delete,
    Observed,
    PatchStatus,
    Plan,
    Pod,
    Ref,
    Refusal,
    Report,
    RuntimeUse,
    Scale,
    Shortage,
    Written,
)
from rljob_operator.policies import drift, refusals
from rljob_operator.reconcile import conditions
from rljob_operator.reconcile.queues import Queues
from rljob_operator.reconcile.shortages import Shortages

logger = logging.getLogger(__name__)

# The first write to etcd makes revision 2.
VERSION_OF_NOTHING = "1"
# What controllers call a pod that they could not make.
_NOT_MADE = "FailedCreate"
_ORDER: Mapping[str, int] = {str(kind): number for number, kind in enumerate(ConditionType)}


# Called with what was seen and the status that is written now; with the key and the kind of a child.
OnStatus = Callable[[Observed, JobStatus], Awaitable[None]]
OnApplied = Callable[[str, str], None]


async def _ignore(observed: Observed, status: JobStatus) -> None:
    pass


# Returns a job, as the API server has it, with its runtime's values in its spec; unchanged where there is no runtime.
UseRuntime = Callable[[dict[str, Any], Mapping[Ref, Child]], tuple[dict[str, Any], RuntimeUse]]


def without_runtime(document: dict[str, Any], children: Mapping[Ref, Child]) -> tuple[dict[str, Any], RuntimeUse]:  # noqa: ARG001  # the shape of UseRuntime
    """For jobs that have none."""
    return document, RuntimeUse()


def _ignore_applied(key: str, kind: str) -> None:
    pass


class Coordinators(Protocol):
    """What was heard of the coordinators, by uid of the job."""

    def report_of(self, uid: str) -> Report | None:
        """Return the last report; None before the first."""

    def silent_since(self, uid: str) -> float | None:
        """Return since when there is no answer, unix seconds; None while there is, or that is not sure."""


class OutOfDateError(Exception):
    """What a pass rested on has changed; the pass is repeated."""


async def nothing_to_certify(job: RLJob) -> None:
    """For jobs in plain text."""


class LiveCluster:
    """Implements `reconciler.Cluster`. `coordinators` knows what each said last."""

    def __init__(
        self, *, client: Client, cache: Cache, lister: Lister, coordinators: Coordinators,
        clock: Callable[[], float], on_status: OnStatus = _ignore, on_applied: OnApplied = _ignore_applied,
        certify: Callable[[RLJob], Awaitable[None]] = nothing_to_certify,
        use_runtime: UseRuntime = without_runtime, default_queue: str = "",
    ) -> None:  # fmt: skip
        """on_status: called after a status was written; on_applied: after a child was. certify: makes the certificates
        of a job be there, before anything makes its pods. use_runtime: puts the values of its runtime into a job.
        default_queue: of jobs that name none.
        """
        self._use_runtime = use_runtime
        self._client, self._cache, self._lister = client, cache, lister
        self._on_status, self._on_applied = on_status, on_applied
        self._coordinators, self._clock, self._certify = coordinators, clock, certify
        # By uid of the job, then by child; by uid of the job, then of the child.
        self._refusals: dict[str, dict[Ref, Refusal]] = {}
        self._written: dict[str, dict[str, Written]] = {}
        self._shortages = Shortages(now=clock)
        self._queues = Queues(client=client, clock=clock, default_queue=default_queue)

    async def observe(self, key: str, *, live: bool) -> Observed | None:
        """Raises ApiError."""
        if live:
            await self._lister.refresh(key)
        view = self._cache.job(key)
        if view is None:
            return None
        children, pods = self._cache.children(key, view.uid), self._cache.pods(key, view.uid)
        document, runtime, body = self._with_runtime(view, children)
        try:
            job = _job(body)
        except pydantic.ValidationError as error:
            await self._say_unreadable(document, runtime, error)
            return None
        observed = Observed(
            job=job,
            runtime=runtime,
            version=view.version,
            deleting=view.deleting,
            children=children,
            pods=pods,
            report=self._coordinators.report_of(view.uid),
            silent_since=self._coordinators.silent_since(view.uid),
            short=await self._short(job, children, pods),
            refusals=dict(self._refusals.get(view.uid, {})),
            written=self._written.get(view.uid, {}),
        )
        # Without the API there is no queue to ask: what runs goes on, and what would begin is refused with a sentence.
        return await self._queues.effective(observed) if kinds.QUEUED in self._lister.children else observed

    async def _short(self, job: RLJob, children: Mapping[Ref, Child], pods: Sequence[Pod]) -> Mapping[Ref, Shortage]:
        async def failures(child: Child) -> str:
            kind = kinds.BY_NAME[child.ref.kind]
            namespace, name = job.metadata.namespace, child.ref.name
            try:
                return await self._client.failures(kind, namespace, name, child.uid, reason=_NOT_MADE)
            except ApiError as error:
                logger.warning("could not read why %s %s lacks pods: %s", kind.kind, name, error)
                return ""

        return await self._shortages.look(job.metadata.uid, children.values(), pods, failures)

    def forget(self, uid: str) -> None:
        self._shortages.forget(uid)
        self._refusals.pop(uid, None)
        self._written.pop(uid, None)

    def planned(self, observed: Observed, planned: Plan) -> None:
        """Forget refusals of what the plan does not want any more."""
        standing = {refusal.ref: refusal for refusal in planned.refused}
        if standing:
            self._refusals[observed.job.metadata.uid] = standing
        else:
            self._refusals.pop(observed.job.metadata.uid, None)

    def job(self, key: str) -> RLJob | None:
        """Return a job with its runtime's values; None for one that is gone. Raises ValidationError."""
        view = self._cache.job(key)
        if view is None:
            return None
        _, _, body = self._with_runtime(view, self._cache.children(key, view.uid))
        return _job(body)

    def _with_runtime(
        self, view: projection.JobView, children: Mapping[Ref, Child]
    ) -> tuple[dict[str, Any], RuntimeUse, str | bytes]:
        """Return a job, what is known of its runtime, and the job as JSON: as it came, where no runtime adds to it."""
        body = view.load()
        document, runtime = self._use_runtime(json.loads(body), children)
        return document, runtime, body if runtime.runtime is None else json.dumps(document)

    async def _say_unreadable(self, raw: dict[str, Any], runtime: RuntimeUse, error: pydantic.ValidationError) -> None:
        problems = runtimes.attributed(messages.explain_errors(error, document=raw, model=RLJob), runtime.origins)
        status = conditions.unreadable_status(raw, problems, now=self._clock())
        if status is not None:
            await self._send_status(raw["metadata"], status)

    async def write_status(self, observed: Observed, status: JobStatus) -> None:
        """Raises ApiError, OutOfDateError."""
        metadata = observed.job.metadata
        body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        identity = {"namespace": metadata.namespace, "name": metadata.name, "uid": metadata.uid}
        # It rests on the status that was seen: another operator's since then is history that must not be overwritten.
        await self._send_status({**identity, "resourceVersion": str(observed.version)}, body)
        await self._on_status(observed, status)

    async def _send_status(self, metadata: Mapping[str, str], status: Object) -> None:
        metadata_fields = {key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion")}
        kind = kinds.RLJOB
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata_fields, "status": status}
        try:
            self._cache.put(kind, await self._client.apply_status(kind, metadata_fields["namespace"], body))
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            key = key_of(metadata_fields["namespace"], metadata_fields["name"])
            await self._look(kind, metadata_fields["namespace"], metadata_fields["name"], metadata_fields["uid"], key)
            view = self._cache.job(key)
            # Deleted or replaced: nothing waits for this status. Else it is history, to be written before its acts.
            if view is not None and view.uid == metadata_fields["uid"]:
                raise OutOfDateError(str(error)) from error

    async def apply(self, observed: Observed, action: Apply) -> Refusal | None:
        """Raises ApiError, OutOfDateError."""
        ref, namespace = action.ref, observed.job.metadata.namespace
        kind, uid = kinds.BY_NAME[ref.kind], action.uid
        answer: Object | None = None
        try:
            if ref.kind in POD_MAKERS:
                await self._certify_before_pods(observed, is_new=not uid)
            if not uid:
                answer = await self._created(kind, namespace, action.manifest)
            if not uid and answer is None:
                uid = await self._uid_of_ours(observed, kind, ref.name)
                # The Job of an attempt that is there already is never changed, but for the labels by which it is found.
                if uid and kind.kind == TRAINER_JOB:
                    labels = drift.labels(action.manifest)
                    return await self.annotate(observed, Annotate(ref=ref, uid=uid, labels=labels))
            before = self._cache.children(_key(observed), observed.job.metadata.uid).get(ref) if uid else None
            if answer is None:
                answer = await self._client.apply(kind, namespace, _with(action.manifest, uid=uid))
        except (ApiError, errors.ClusterError) as error:
            if isinstance(error, ApiError) and error.status == 409:
                changed = await self._look(kind, namespace, ref.name, uid, _key(observed))
                if changed:
                    raise OutOfDateError(f"{ref.kind} {ref.name} was replaced") from error
            return self._refused(observed, ref, error)
        self._cache.put(kind, answer, live=True)
        repair = before is not None and drift.intent(before.manifest) == drift.intent(action.manifest)
        self._note_written(observed, answer, action, repair=repair)
        self._accepted(observed, ref)
        self._on_applied(_key(observed), ref.kind)
        return None

    def _note_written(self, observed: Observed, answer: Object, action: Apply, *, repair: bool) -> None:
        of_job, uid = self._written.setdefault(observed.job.metadata.uid, {}), answer["metadata"]["uid"]
        note = drift.write(of_job.get(uid), answer, action.manifest, repair=repair, now=self._clock())
        if note is None:
            of_job.pop(uid, None)
        else:
            of_job[uid] = note

    async def _certify_before_pods(self, observed: Observed, *, is_new: bool) -> None:
        """See to the certificates that pods of the job mount. Raises ClusterError where new pods would have none."""
        try:
            await self._certify(observed.job)
        except errors.ClusterError as error:
            # Who has pods has certificates, and a trainer's next attempt finds those of the last one.
            begins = is_new and not observed.pods and (observed.status.attempt or 0) <= 1
            if begins or (isinstance(error, ApiError) and not refusals.reason(error.status)):
                raise
            logger.warning("%s: could not renew its certificates: %s", _key(observed), error)

    async def _created(self, kind: Kind, namespace: str, manifest: Mapping[str, Any]) -> Object | None:
        """Create an object by one request; return None where the name is taken. Raises ApiError.

        An apply in a version that no object has is refused with a conflict by whatever has the name, of ours or not.
        """
        try:
            return await self._client.apply(kind, namespace, _with(manifest, resourceVersion=VERSION_OF_NOTHING))
        except ApiError as error:
            if error.status != 409:
                raise
            return None

    async def _uid_of_ours(self, observed: Observed, kind: Kind, name: str) -> str:
        """Return the uid of a child that is there though no watch reports on it, as when it lost a label; empty if the
        name is free. Raises ClusterError if something else has the name: it is never ours to change
        (docs/design/operator.md#s-3-7).
        """
        live = await self._client.get(kind, observed.job.metadata.namespace, name)
        if live is None:
            return ""
        if projection.owner_of(live) == observed.job.metadata.uid:
            self._cache.put(kind, live, live=True)
            return str(live["metadata"]["uid"])
        raise errors.ClusterError(f"{kind.kind} {name} exists and is not this job's: delete it, or rename the job")

    def _refused(self, observed: Observed, ref: Ref, error: errors.ClusterError) -> Refusal:
        """Keep why an action on a child was refused; raise the error if it says nothing of this child."""
        status = error.status if isinstance(error, ApiError) else None
        reason = refusals.NAME_CONFLICT if status is None else refusals.reason(status)
        if not reason:
            raise error
        metadata = observed.job.metadata
        of_job = self._refusals.setdefault(metadata.uid, {})
        new = Refusal(
            ref=ref,
            reason=reason,
            message=str(error),
            generation=metadata.generation,
            passing=status is not None and refusals.may_pass(status),
        )
        of_job[ref] = refusals.with_backoff(of_job.get(ref), new, now=self._clock())
        logger.warning("%s: %s %s is refused: %s", _key(observed), ref.kind, ref.name, error)
        return of_job[ref]

    def _accepted(self, observed: Observed, ref: Ref) -> None:
        self._refusals.get(observed.job.metadata.uid, {}).pop(ref, None)

    async def scale(self, observed: Observed, action: Scale) -> Refusal | None:
        """Raises ApiError."""
        body: Object = {"metadata": {"uid": action.uid}, "spec": {"replicas": action.replicas}}
        # Setting them again is not a repair of what another hand did.
        self._written.get(observed.job.metadata.uid, {}).pop(action.uid, None)
        return await self._merge(observed, action.ref, action.uid, body)

    async def annotate(self, observed: Observed, action: Annotate) -> Refusal | None:
        """Raises ApiError."""
        changes = {"annotations": dict(action.annotations), "labels": dict(action.labels)}
        body: Object = {"metadata": {"uid": action.uid, **{key: value for key, value in changes.items() if value}}}
        return await self._merge(observed, action.ref, action.uid, body)

    async def _merge(self, observed: Observed, ref: Ref, uid: str, body: Object) -> Refusal | None:
        kind, namespace = kinds.BY_NAME[ref.kind], observed.job.metadata.namespace
        try:
            self._cache.put(kind, await self._client.merge(kind, namespace, ref.name, body), live=True)
        except ApiError as error:
            # A patch that names another uid than the object's is invalid.
            if error.status in (404, 409, 422) and await self._look(kind, namespace, ref.name, uid, _key(observed)):
                return None
            return self._refused(observed, ref, error)
        self._accepted(observed, ref)
        return None

    async def patch_status(self, observed: Observed, action: PatchStatus) -> Refusal | None:
        """Raises ApiError, OutOfDateError."""
        kind, namespace, name = kinds.BY_NAME[action.ref.kind], observed.job.metadata.namespace, action.ref.name
        metadata = {"uid": action.uid, "resourceVersion": str(action.version)}
        body: Object = {"metadata": metadata, "status": dict(action.status)}
        try:
            answer = await self._client.merge(kind, namespace, name, body, subresource="status")
        except ApiError as error:
            if error.status in (404, 409):
                await self._look(kind, namespace, name, action.uid, _key(observed))
                raise OutOfDateError(f"{kind.kind} {name} has changed") from error
            return self._refused(observed, action.ref, error)
        self._cache.put(kind, answer, live=True)
        self._accepted(observed, action.ref)
        return None

    async def delete(self, observed: Observed, action: Delete) -> Refusal | None:
        """Raises ApiError."""
        kind, namespace, name = kinds.BY_NAME[action.ref.kind], observed.job.metadata.namespace, action.ref.name
        try:
            answer = await self._client.delete(kind, namespace, name, uid=action.uid, grace_s=action.grace_s)
        except ApiError as error:
            if error.status in (404, 409) and await self._look(kind, namespace, name, action.uid, _key(observed)):
                return None
            return self._refused(observed, action.ref, error)
        self._accepted(observed, action.ref)
        if answer.get("kind") == kind.kind and "deletionTimestamp" in answer.get("metadata", {}):
            self._cache.put(kind, answer)
        else:
            self._cache.forget(kind, _key(observed), name, action.uid)
        return None

    async def _look(self, kind: Kind, namespace: str, name: str, uid: str, key: str) -> bool:
        """Bring the cache up to date on one object; return whether it is not what it was thought to be: the one of
        that uid, or none where that is empty.
        """
        live = await self._client.get(kind, namespace, name)
        uid_now = "" if live is None else str(live["metadata"]["uid"])
        if uid and uid_now != uid:
            self._cache.forget(kind, key, name, uid)
        if live is not None:
            self._cache.put(kind, live, live=True)
        return uid_now != uid


def _key(observed: Observed) -> str:
    return key_of(observed.job.metadata.namespace, observed.job.metadata.name)


def _with(manifest: Mapping[str, Any], **preconditions: str) -> Mapping[str, Any]:
    """Return a manifest that is applied only to the object of that uid or version; an empty one says nothing."""
    named = {name: value for name, value in preconditions.items() if value}
    return {**manifest, "metadata": {**manifest["metadata"], **named}} if named else manifest


def _job(body: str | bytes) -> RLJob:
    """Return a job with our conditions in our order: others' are theirs. Raises ValidationError."""
    job = RLJob.model_validate_json(body)
    if job.status is None:
        return job
    conditions = sorted(
        (condition for condition in job.status.conditions if condition.type in _ORDER),
        key=lambda condition: _ORDER[condition.type],
    )
    return job.model_copy(update={"status": job.status.model_copy(update={"conditions": tuple(conditions)})})
