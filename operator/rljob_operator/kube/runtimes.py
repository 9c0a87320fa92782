"""What is known of RLJobRuntimes and ClusterRLJobRuntimes, and whether each is accepted: the status that says so."""

import dataclasses
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pydantic

from rljob_api import enums
from rljob_api.manifest.runtime import JobRuntime
from rljob_api.validation import messages, runtimes
from rljob_operator import clock
from rljob_operator.kube import kinds, projection
from rljob_operator.kube.client import ApiError, Client, NotLeadingError, Object
from rljob_operator.kube.kinds import Kind
from rljob_operator.kube.scope import everywhere
from rljob_operator.policies.runtimes import Found

logger = logging.getLogger(__name__)
_MOST_MESSAGE = 1024
_WITHDRAWN = frozenset({403, 404})

Key = tuple[str, str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class _Entry:
    uid: str
    version: int
    state: Found
    conditions: Sequence[Mapping[str, Any]]


class Runtimes:
    """Runtimes by kind, namespace and name: memory only, a start lists them again. includes: of which namespaces."""

    def __init__(self, includes: Callable[[str], bool] = everywhere) -> None:
        self._includes = includes
        self._entries: dict[Key, _Entry] = {}

    def put(self, raw: Mapping[str, Any]) -> bool:
        """Keep a runtime; return whether jobs may read something else in it than before."""
        key, version = _key(raw), projection.version_of(raw)
        if key[1] and not self._includes(key[1]):
            return False
        entry = self._entries.get(key)
        metadata = raw["metadata"]
        is_same = entry is not None and entry.uid == metadata["uid"]
        if entry is not None and is_same and version <= entry.version:
            return False
        generation = int(metadata.get("generation", 1))
        changed = entry is None or not is_same or entry.state.generation != generation
        state = _checked(raw, generation) if entry is None or changed else entry.state
        self._entries[key] = _Entry(metadata["uid"], version, state, (raw.get("status") or {}).get("conditions") or ())
        return changed

    def remove(self, raw: Mapping[str, Any]) -> bool:
        """Forget a runtime that was deleted; return whether it was kept."""
        entry = self._entries.get(_key(raw))
        if entry is None or entry.uid != raw["metadata"]["uid"]:
            return False
        del self._entries[_key(raw)]
        return True

    def drop(self, namespace: str) -> None:
        """Let go of the runtimes of a namespace."""
        for key in [key for key in self._entries if key[1] == namespace]:
            del self._entries[key]

    def find(self, kind: str, namespace: str, name: str) -> Found | None:
        """Return a runtime as it is now; None if there is none."""
        entry = self._entries.get((kind, namespace, name))
        return None if entry is None else entry.state

    async def compare(self, client: Client, namespaces: Sequence[str | None]) -> bool:
        """List all, and forget what was known and is not listed, since a watch that broke reports nothing of it; return
        whether jobs may read something else than before. What may not be listed, or is not served, stays as it is.

        Raises ApiError where the server fails.
        """
        changed = False
        for kind, namespace in listed(namespaces):
            before = [key for key in self._entries if key[0] == kind.kind and namespace in (None, key[1])]
            listed_keys = set[Key]()
            try:
                async for page in client.pages(kind, namespace):
                    for raw in page:
                        listed_keys.add(_key(raw))
                        changed |= self.put(raw)
            except ApiError as error:
                if error.status not in _WITHDRAWN:
                    raise
                logger.warning("could not list %s: %s", kind.plural, error)
                continue
            for key in set(before) - listed_keys:
                changed |= self._entries.pop(key, None) is not None
        return changed

    async def report(self, client: Client, *, now: float) -> None:
        """Write the status of each runtime that does not say yet what was found of it. Raises ApiError.

        One in a namespace of a shard that is not led is left to the process that leads it.
        """
        for key, entry in list(self._entries.items()):
            condition = _condition(entry, now=now)
            if condition is None:
                continue
            kind_name, namespace, name = key
            kind = kinds.BY_NAME[kind_name]
            identity: Object = {"name": name, "uid": entry.uid, **({"namespace": namespace} if namespace else {})}
            status = {"observedGeneration": entry.state.generation, "conditions": [condition]}
            body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": identity, "status": status}
            try:
                self.put(await client.apply_status(kind, namespace, body))
            except NotLeadingError:
                continue
            except ApiError as error:
                # Deleted or made again meanwhile: the watch says so.
                if error.status not in (404, 409):
                    raise


def listed(namespaces: Sequence[str | None]) -> Iterator[tuple[Kind, str | None]]:
    """Yield what to list: an operator of single namespaces has no right to what is of the whole cluster."""
    if None in namespaces:
        yield kinds.CLUSTER_RUNTIME, None
    yield from ((kinds.RUNTIME, namespace) for namespace in namespaces)


def _key(raw: Mapping[str, Any]) -> Key:
    return raw["kind"], str(raw["metadata"].get("namespace") or ""), raw["metadata"]["name"]


def _checked(raw: Mapping[str, Any], generation: int) -> Found:
    document = {key: raw.get(key) for key in ("kind", "metadata", "spec")}
    document["apiVersion"] = f"{enums.API_GROUP}/{enums.API_VERSION}"
    try:
        runtime = JobRuntime.model_validate_json(json.dumps(document))
    except pydantic.ValidationError as error:
        wrong = messages.explain_errors(error, document=document, model=JobRuntime)
        return Found(runtime=None, generation=generation, problems=tuple(wrong))
    return Found(runtime=runtime, generation=generation, problems=tuple(runtimes.problems(runtime)))


def _condition(entry: _Entry, *, now: float) -> Object | None:
    """Return Accepted as it should be; None where the object has it."""
    problems = entry.state.problems
    message = "; ".join(problems)
    message = message if len(message) <= _MOST_MESSAGE else message[: _MOST_MESSAGE - 2] + " …"
    status, reason = ("False", "InvalidSpec") if problems else ("True", "Accepted")
    before = next((each for each in entry.conditions if each.get("type") == "Accepted"), {})
    says = tuple(before.get(key) for key in ("status", "reason", "message", "observedGeneration"))
    if says == (status, reason, message, entry.state.generation):
        return None
    since = before.get("lastTransitionTime") if before.get("status") == status else None
    return {
        "type": "Accepted",
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": entry.state.generation,
        "lastTransitionTime": since or clock.to_timestamp(now),
    }
