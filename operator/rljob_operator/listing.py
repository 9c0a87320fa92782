"""Lists against the cache: the whole at start, metadata every few minutes, one job before what cannot be taken back.

A watch that broke reports nothing of what vanished meanwhile, so whatever a list does not show is forgotten (1.9).
"""

import asyncio
import dataclasses
import itertools
import time
from collections.abc import Iterable, Mapping, Sequence

from rljob_api import names
from rljob_operator import kinds, trimming
from rljob_operator.cache import Cache, Known, job_key, split_key
from rljob_operator.cluster import ApiError, Client, Object
from rljob_operator.kinds import Kind
from rljob_operator.model import TRAINER_JOB
from rljob_operator.resources import inputs
from rljob_operator.watchlag import WatchLag

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
    lag: WatchLag = dataclasses.field(default_factory=WatchLag)

    async def fill(self) -> None:
        """List every kind once, all at the same time: the server makes one answer while another is read.

        Raises ApiError.
        """
        every = (kinds.RLJOB, kinds.POD, *self.children)
        try:
            async with asyncio.TaskGroup() as group:
                for kind, namespace in itertools.product(every, self.namespaces):
                    group.create_task(self._fill(kind, namespace))
        except* ApiError as errors:
            # The first that failed; the others were cancelled with it.
            raise errors.exceptions[0] from errors

    async def _fill(self, kind: Kind, namespace: str | None) -> None:
        async for page in self.client.pages(kind, namespace, selector=kinds.selector_of(kind)):
            for raw in page:
                self.cache.put(kind, raw)

    async def compare(self) -> set[str]:
        """List the metadata of every kind and return the keys of jobs of which something was out of date.

        What differs is read again, what is gone is forgotten. Raises ApiError.
        """
        changed = set[str]()
        for kind in (kinds.RLJOB, kinds.POD, *self.children):
            changed |= await self._compare(kind)
        self.cache.drop_empty()
        return changed

    async def _compare(self, kind: Kind) -> set[str]:
        # What comes while the list is under way is not known to it and must not be forgotten.
        before = {(key, name): (uid, version) for key, name, uid, version in self.cache.known(kind)}
        changed, listed = set[str](), set[str]()
        for namespace in self.namespaces:
            pages = self.client.pages(kind, namespace, selector=kinds.selector_of(kind), metadata_only=True)
            async for page in pages:
                for raw in page:
                    listed.add(raw["metadata"]["uid"])
                    changed |= await self._look_at(kind, raw, before)
        for (key, name), (uid, _) in before.items():
            if uid not in listed and self.cache.forget(kind, key, name, uid):
                self.lag.told(uid)
                changed.add(key)
        return changed

    async def _look_at(self, kind: Kind, raw: Object, before: Mapping[tuple[str, str], tuple[str, int]]) -> set[str]:
        metadata, key = raw["metadata"], job_key(kind, raw)
        if key is None:
            return set()
        if before.get((key, metadata["name"])) == (metadata["uid"], trimming.version_of(raw)):
            return set()
        found = await self.client.get(kind, metadata["namespace"], metadata["name"])
        if found is None or self.cache.put(kind, found) is None:
            return set()
        if kind in kinds.WATCHED:
            self.lag.ahead(found["metadata"]["uid"], kind=kinds.kept_as(kind), now=time.monotonic())
        return {key}

    async def refresh(self, key: str) -> None:
        """Read what decisions that cannot be taken back rest on, as it is now: one job, its trainer's Jobs, its pods.

        The API server looks at a whole namespace to list one job's objects. So Jobs are read by the names that they
        can have, and pods are listed only where there may be any. Raises ApiError.
        """
        namespace, name = split_key(key)
        job = await self._read(kinds.RLJOB, key, name)
        jobs = {known for _, known, _, _ in self.cache.known(_JOB, key)} | _attempts(name, job)
        made = [await self._read(_JOB, key, each) for each in sorted(jobs)]
        before = list(self.cache.known(kinds.POD, key))
        selector = f"{kinds.MANAGED},{trimming.JOB_LABEL}={name}"
        expected = bool(before) or any(each is not None for each in made)
        found = await self.client.list(kinds.POD, namespace, selector=selector) if expected else []
        self._take(kinds.POD, found, before)

    async def _read(self, kind: Kind, key: str, name: str) -> Object | None:
        before = [each for each in self.cache.known(kind, key) if each[1] == name]
        found = await self.client.get(kind, split_key(key)[0], name)
        self._take(kind, [] if found is None else [found], before)
        return found

    def _take(self, kind: Kind, found: Iterable[Object], before: Iterable[Known]) -> None:
        """Keep what was found; forget what was known before the request and is not among it."""
        listed = set[object]()
        for raw in found:
            listed.add(raw["metadata"]["uid"])
            self.cache.put(kind, raw)
        for key, name, uid, _ in before:
            if uid not in listed:
                self.cache.forget(kind, key, name, uid)


def _attempts(name: str, job: Object | None) -> set[str]:
    """Return the names of the Jobs of a trainer's attempt of which the job tells, and of the next one."""
    if job is None:
        return set()
    number = (job.get("status") or {}).get("attempt") or 0
    return {inputs.named(name, names.Role.TRAINER, each) for each in (number, number + 1) if each}
