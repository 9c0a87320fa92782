"""Lists against the cache: the whole at start, metadata every few minutes, one job before what cannot be taken back.

A watch that broke reports nothing of what vanished meanwhile, so whatever a list does not show is forgotten
(docs/design/operator.md#s-1-9). Each kind is listed in each namespace by itself: a namespace that was deleted, or a
right that was withdrawn, costs what it covers and nothing else. Where jobs or what runs them cannot be listed, a
namespace is closed: nothing is judged there.
"""

import asyncio
import dataclasses
import itertools
import logging
import time
from collections.abc import Iterable, Mapping, Sequence

from rljob_api import enums
from rljob_operator.kube import kinds, projection
from rljob_operator.kube.cache import Cache, Entry, job_key, split_key
from rljob_operator.kube.client import ApiError, Client, Object
from rljob_operator.kube.kinds import Kind
from rljob_operator.kube.scope import Scope
from rljob_operator.model import TRAINER_JOB
from rljob_operator.resources import inputs


class WatchLag:
    """Age of the oldest change that a list showed and no watch delivered.

    A frozen watch is as silent as a quiet one, and Kopf keeps bookmarks to itself. Deletions do not count: a watch that
    is opened again never delivers what vanished meanwhile.

    Uids of which a list knew more than the watches. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[str, float]] = {}

    def ahead(self, uid: str, *, kind: str, now: float) -> None:
        """Note that a list showed a newer version of an object."""
        self._since.setdefault(uid, (kind, now))

    def clear(self, uid: str) -> None:
        """Note that a watch reported the object, or that it is gone."""
        self._since.pop(uid, None)

    def seconds(self, *, now: float, kind: str = "") -> float:
        """Return the age of the oldest, of one kind or of any; 0 without one."""
        # A copy in one step: the page of metrics is made on another thread.
        entries = list(self._since.values())
        return max((now - since for of, since in entries if kind in ("", of)), default=0.0)


logger = logging.getLogger(__name__)

# No right, or nothing of that name: neither ends by asking again soon.
_WITHDRAWN = frozenset({403, 404})
_NO_ANSWER = 0
_JOB = kinds.BY_NAME[TRAINER_JOB]
# None: the whole cluster.
Namespaces = Sequence[str | None]


@dataclasses.dataclass(slots=True)
class Lister:
    """Brings the cache up to date by lists."""

    client: Client
    cache: Cache
    namespaces: Namespaces
    children: Sequence[Kind] = kinds.CHILDREN
    scope: Scope = dataclasses.field(default_factory=Scope)
    lag: WatchLag = dataclasses.field(default_factory=WatchLag)
    # Why a kind could not be listed in a namespace when it was tried last.
    refused: dict[tuple[Kind, str | None], str] = dataclasses.field(default_factory=dict)

    def closed(self, namespace: str) -> str:
        """Return why nothing can be said of the jobs of a namespace; empty if it can."""
        if namespace in self.scope.opening:
            return f"namespace {namespace} is not listed yet"
        of = (
            reason
            for (kind, where), reason in self.refused.items()
            if kind in kinds.WATCHED and where in (None, namespace)
        )
        return next(of, "")

    def blind(self) -> str:
        """Return why nothing can be said of any job; empty if it can of some."""
        reasons = [self.closed(namespace or "") for namespace in self.namespaces]
        return reasons[0] if all(reasons) else ""

    async def fill(self) -> None:
        """List every kind once, all at the same time: the server makes one answer while another is read.

        What is refused is noted. Raises ApiError where the server fails.
        """
        await self._fill_all(self.namespaces)
        self.scope.opening.clear()

    async def open(self, namespace: str) -> None:
        """List a namespace that has come into the scope. Raises ApiError where the server fails."""
        mark = self.scope.opening.get(namespace)
        await self._fill_all((namespace,))
        refused = [self.refused.pop(place) for place in list(self.refused) if place[1] == namespace]
        if refused:
            raise ApiError(refused[0])
        # It may have gone and come back meanwhile; then what was listed in between was not kept.
        if self.scope.opening.get(namespace) is mark:
            self.scope.opening.pop(namespace, None)

    def close(self, namespace: str) -> dict[str, str]:
        """Forget all objects of a namespace that has left the scope; return the uids of its jobs by key."""
        for kind in (kinds.RLJOB, kinds.POD, *self.children):
            for key, _, uid, _ in self.cache.entries(kind):
                if split_key(key)[0] == namespace:
                    self.lag.clear(uid)
        return self.cache.drop(namespace)

    async def _fill_all(self, namespaces: Namespaces) -> None:
        every = (kinds.RLJOB, kinds.POD, *self.children)
        try:
            async with asyncio.TaskGroup() as group:
                for kind, namespace in itertools.product(every, namespaces):
                    group.create_task(self._fill(kind, namespace))
        except ExceptionGroup as errors:
            # Not `except*`: what is raised in one arrives in a group of its own with Python before 3.11.4.
            refused, others = errors.split(ApiError)
            if refused is None or others is not None:
                raise
            # The first that failed; the others were cancelled with it.
            raise refused.exceptions[0] from errors

    async def _fill(self, kind: Kind, namespace: str | None) -> None:
        try:
            async for page in self.client.pages(kind, namespace, selector=kinds.selector_of(kind)):
                for raw in page:
                    self.cache.put(kind, raw)
        except ApiError as error:
            if error.status not in _WITHDRAWN:
                raise
            self._refused(kind, namespace, error)
        else:
            self._listed(kind, namespace)

    def _refused(self, kind: Kind, namespace: str | None, error: ApiError) -> None:
        where = f"namespace {namespace}" if namespace else "the cluster"
        if (kind, namespace) not in self.refused:
            logger.warning("%s cannot be listed in %s: %s", kind.plural, where, error)
        self.refused[kind, namespace] = f"{kind.plural} cannot be listed in {where}: {error}"

    def _listed(self, kind: Kind, namespace: str | None) -> None:
        if self.refused.pop((kind, namespace), None):
            logger.info("%s can be listed again in %s", kind.plural, namespace or "the cluster")

    async def compare(self) -> set[str]:
        """List the metadata of every kind and return the keys of jobs of which something was out of date, and of those
        of which something can be said again.

        What differs is read again, what is gone is forgotten. What cannot be listed is noted and the rest continues.
        Raises ApiError where the server does not answer at all.
        """
        changed, shut = set[str](), {key for key in self.cache.keys if self.closed(split_key(key)[0])}
        for kind, namespace in itertools.product((kinds.RLJOB, kinds.POD, *self.children), self.namespaces):
            try:
                changed |= await self._compare(kind, namespace)
            except ApiError as error:
                if error.status == _NO_ANSWER:
                    raise
                self._refused(kind, namespace, error)
            else:
                self._listed(kind, namespace)
        self.cache.drop_empty()
        return changed | {key for key in shut if not self.closed(split_key(key)[0])}

    async def _compare(self, kind: Kind, namespace: str | None) -> set[str]:
        # What comes while the list is under way is not known to it and must not be forgotten.
        before = {
            (key, name): (uid, version)
            for key, name, uid, version in self.cache.entries(kind)
            if namespace in (None, split_key(key)[0])
        }
        changed, listed = set[str](), set[str]()
        async for page in self.client.pages(kind, namespace, selector=kinds.selector_of(kind), metadata_only=True):
            for raw in page:
                listed.add(raw["metadata"]["uid"])
                changed |= await self._look_at(kind, raw, before)
        for (key, name), (uid, _) in before.items():
            if uid not in listed and self.cache.forget(kind, key, name, uid):
                self.lag.clear(uid)
                changed.add(key)
        return changed

    async def _look_at(self, kind: Kind, raw: Object, before: Mapping[tuple[str, str], tuple[str, int]]) -> set[str]:
        metadata, key = raw["metadata"], job_key(kind, raw)
        if key is None or not self.cache.includes(metadata["namespace"]):
            return set()
        uid, version = before.get((key, metadata["name"]), ("", None))
        if (uid, version) == (metadata["uid"], projection.version_of(raw)):
            return set()
        objects = await self.client.get(kind, metadata["namespace"], metadata["name"])
        # An API server that was restored from a backup shows what it has by versions that are older.
        if objects is None or self.cache.put(kind, objects, live=True, instead_of=version) is None:
            return set()
        if kind in kinds.WATCHED:
            self.lag.ahead(objects["metadata"]["uid"], kind=kinds.cached_as(kind), now=time.monotonic())
        return {key}

    async def refresh(self, key: str) -> None:
        """Read what decisions that cannot be taken back rest on, as it is now: one job, its trainer's Jobs, its pods,
        what a queue says of it.

        The API server looks at a whole namespace to list one job's objects. So Jobs are read by the names that they
        can have, and pods are listed only where there may be any. Raises ApiError.
        """
        namespace, name = split_key(key)
        job = await self._read(kinds.RLJOB, key, name)
        job_names = {name for _, name, _, _ in self.cache.entries(_JOB, key)} | _attempts(name, job)
        trainer_jobs = await asyncio.gather(*(self._read(_JOB, key, each) for each in sorted(job_names)))
        selector = f"{kinds.OF_JOBS},{projection.JOB_LABEL}={name}"
        if kinds.QUEUED in self.children:
            before = list(self.cache.entries(kinds.QUEUED, key))
            self._take(kinds.QUEUED, await self.client.list(kinds.QUEUED, namespace, selector=selector), before)
        # After the Jobs: one that has failed is judged by pods that are not older.
        before = list(self.cache.entries(kinds.POD, key))
        expected = bool(before) or any(each is not None for each in trainer_jobs)
        objects = await self.client.list(kinds.POD, namespace, selector=selector) if expected else []
        self._take(kinds.POD, objects, before)

    async def _read(self, kind: Kind, key: str, name: str) -> Object | None:
        before = [each for each in self.cache.entries(kind, key) if each[1] == name]
        objects = await self.client.get(kind, split_key(key)[0], name)
        self._take(kind, [] if objects is None else [objects], before)
        return objects

    def _take(self, kind: Kind, objects: Iterable[Object], before: Iterable[Entry]) -> None:
        """Keep what was found; forget what was known before the request and is not among it."""
        listed = set[object]()
        for raw in objects:
            listed.add(raw["metadata"]["uid"])
            self.cache.put(kind, raw, live=True)
        for key, name, uid, _ in before:
            if uid not in listed:
                self.cache.forget(kind, key, name, uid)


def _attempts(name: str, job: Object | None) -> set[str]:
    """Return the names of the Jobs of a trainer's attempt that the job reports, and of the next one."""
    if job is None:
        return set()
    number = (job.get("status") or {}).get("attempt") or 0
    return {inputs.named(name, enums.Role.TRAINER, each) for each in (number, number + 1) if each}
