"""What is known of the cluster: a plain dictionary by job, fed by lists, watch events and answers to our own writes.

An object never goes back in time: an older resource version of the same uid is ignored, and what was seen deleted does
not come back by a late event. But what lost the label by which it is watched looks deleted and is not: a newer event
shows it again, and so does a read that was made since. Memory only: a start rebuilds it.
"""

import collections
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rljob_api import enums
from rljob_operator.kube import kinds, projection
from rljob_operator.kube.kinds import POD, RLJOB, Kind
from rljob_operator.kube.projection import ChildView, JobView, PodView
from rljob_operator.kube.scope import everywhere
from rljob_operator.model import Child, Pod, Ref

Raw = Mapping[str, Any]
# Key of the job, name, uid and resource version of an object.
Entry = tuple[str, str, str, int]
# Uids of objects that are gone: as many as could still be spoken of by a late event.
_MOST_GONE = 20_000


def key_of(namespace: str, job: str) -> str:
    return f"{namespace}/{job}"


def split_key(key: str) -> tuple[str, str]:
    namespace, _, name = key.partition("/")
    return namespace, name


def job_key(kind: Kind, raw: Raw) -> str | None:
    """Return the key of the job that an object belongs to; None if it says none."""
    metadata = raw["metadata"]
    name = metadata["name"] if kind is RLJOB else (metadata.get("labels") or {}).get(projection.JOB_LABEL)
    # Pods are controlled by what makes them; a child without its label is known by its owner.
    name = name or projection.owner_name(metadata)
    return key_of(metadata["namespace"], name) if name else None


class Cache:
    """Jobs, children and pods by key. includes: whether objects of a namespace are kept."""

    def __init__(self, includes: Callable[[str], bool] = everywhere) -> None:
        self.includes = includes
        self._jobs: dict[str, JobView] = {}
        self._children: dict[str, dict[Ref, ChildView]] = {}
        self._pods: dict[str, dict[str, PodView]] = {}
        # Version in which an object was last known, by uid.
        self._gone: collections.OrderedDict[str, int] = collections.OrderedDict()

    def __len__(self) -> int:
        return sum(map(self.number, kinds.CACHED_KINDS))

    def number(self, kind: str) -> int:
        """Return how many objects of a kind are kept: rljob, pod or child. Raises KeyError for another."""
        # Copies in one step: the page of metrics is made on another thread.
        pods = sum(map(len, list(self._pods.values())))
        children = sum(map(len, list(self._children.values())))
        return {"rljob": len(self._jobs), "pod": pods, "child": children}[kind]

    @property
    def keys(self) -> list[str]:
        return list(self._jobs)

    def put(self, kind: Kind, raw: Raw, *, live: bool = False, instead_of: int | None = None) -> str | None:
        """Keep an object if it is newer than what is known; return its job's key if that changed anything.

        live: it is the answer to a request that was sent after it was last seen deleted, if it was. instead_of: the
        version that was known before it was asked for; an older answer comes of a server that went back in time.
        """
        key, metadata, version = job_key(kind, raw), raw["metadata"], projection.version_of(raw)
        gone = self._gone.get(metadata["uid"])
        if key is None or not self.includes(metadata["namespace"]):
            return None
        if gone is not None and (version < gone or (version == gone and not live)):
            return None
        entry = self._known_as(kind, key, metadata["name"])
        # Before anything is made of it: after a start each object is reported twice.
        is_same = entry is not None and entry[0] == metadata["uid"]
        if entry is not None and is_same and (version == entry[1] or (version < entry[1] != instead_of)):
            return None
        self._gone.pop(metadata["uid"], None)
        if kind is RLJOB:
            self._jobs[key] = projection.project_job(raw)
        elif kind is POD:
            pod = projection.project_pod(raw)
            if pod is None:
                return None
            self._pods.setdefault(key, {})[pod.pod.name] = pod
        else:
            child = projection.project_child(raw)
            self._children.setdefault(key, {})[child.ref] = child
        return key

    def remove(self, kind: Kind, raw: Raw) -> str | None:
        """Forget an object that was deleted; return its job's key if it was known."""
        key = job_key(kind, raw)
        metadata = raw["metadata"]
        if key is None:
            return None
        return self.forget(kind, key, metadata["name"], metadata["uid"], version=projection.version_of(raw))

    def forget(self, kind: Kind, key: str, name: str, uid: str, *, version: int = 0) -> str | None:
        """Forget the object of that name and uid, last seen in `version`; return the key if it was known."""
        entry = self._known_as(kind, key, name)
        cached_version = entry[1] if entry is not None and entry[0] == uid else 0
        self._gone[uid] = max(version, cached_version, self._gone.get(uid, 0))
        while len(self._gone) > _MOST_GONE:
            self._gone.popitem(last=False)
        if entry is None or entry[0] != uid:
            return None
        if kind is RLJOB:
            del self._jobs[key]
        elif kind is POD:
            del self._pods[key][name]
        else:
            del self._children[key][Ref(kind.name, name)]
        return key

    def _known_as(self, kind: Kind, key: str, name: str) -> tuple[str, int] | None:
        """Return uid and version of what is kept under a name."""
        if kind is RLJOB:
            job = self._jobs.get(key)
            return None if job is None else (job.uid, job.version)
        if kind is POD:
            entry = self._pods.get(key, {}).get(name)
            return None if entry is None else (entry.pod.uid, entry.version)
        child = self._children.get(key, {}).get(Ref(kind.name, name))
        return None if child is None else (child.uid, child.version)

    def job(self, key: str) -> JobView | None:
        return self._jobs.get(key)

    def children(self, key: str, uid: str) -> dict[Ref, Child]:
        """Return the children that the job of that uid controls."""
        entries = self._children.get(key, {})
        return {ref: child.child() for ref, child in sorted(entries.items()) if child.owner == uid}

    def pods(self, key: str, uid: str) -> tuple[Pod, ...]:
        """Return the pods of the job of that uid, by name."""
        entries = self._pods.get(key, {})
        return tuple(entries[name].pod for name in sorted(entries) if entries[name].owner == uid)

    def has_pod(self, key: str, uid: str, role: enums.Role) -> bool:
        return any(entry.owner == uid and entry.pod.role is role for entry in self._pods.get(key, {}).values())

    def entries(self, kind: Kind, key: str | None = None) -> Iterator[Entry]:
        """Yield key, name, uid and resource version of every object of a kind, or of one job's."""
        keys = [key] if key is not None else [*self._jobs, *self._children, *self._pods]
        for each in dict.fromkeys(keys):
            yield from self._known_of(kind, each)

    def _known_of(self, kind: Kind, key: str) -> Iterator[Entry]:
        if kind is RLJOB and key in self._jobs:
            job = self._jobs[key]
            yield key, split_key(key)[1], job.uid, job.version
        elif kind is POD:
            for name, pod in list(self._pods.get(key, {}).items()):
                yield key, name, pod.pod.uid, pod.version
        else:
            for ref, child in list(self._children.get(key, {}).items()):
                if ref.kind == kind.name:
                    yield key, ref.name, child.uid, child.version

    def drop(self, namespace: str) -> dict[str, str]:
        """Let go of all objects of a namespace, which are not gone; return the uids of its jobs by key."""
        jobs = {key: job.uid for key, job in self._jobs.items() if split_key(key)[0] == namespace}
        parts: tuple[dict[str, Any], ...] = (self._jobs, self._children, self._pods)
        for part in parts:
            for key in [key for key in part if split_key(key)[0] == namespace]:
                del part[key]
        return jobs

    def drop_empty(self) -> None:
        """Let go of the places of jobs that are gone with everything they had."""
        for part in (self._children, self._pods):
            for key in [key for key, objects in part.items() if not objects]:
                del part[key]
