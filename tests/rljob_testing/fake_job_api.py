"""The API that the Python client asks, played from lists: what each request answers, in order."""

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rljob import errors
from rljob_testing.cluster import manifests

Body = Mapping[str, Any]


def stored(
    name: str = "sums", *, version: int = 1, uid: str = "u1", status: Mapping[str, object] | None = None
) -> Body:
    """Return a job as the API server has it."""
    body = manifests.job(name, {})
    metadata = {"name": name, "namespace": "research", "uid": uid, "resourceVersion": str(version)}
    return {**body, "metadata": metadata, "status": dict(status or {})}


def condition(kind: str, reason: str, message: str = "") -> dict[str, str]:
    at = "2026-01-01T00:00:00Z"
    return {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": at}


def event(kind: str, body: Body) -> Body:
    return {"type": kind, "object": body}


class FakeJobApi:
    """Answers `get` and `watch` from lists, an error among them is raised; keeps what it was asked in `calls`."""

    namespace = "research"

    def __init__(
        self,
        *,
        reads: Sequence[Body | errors.ApiError] = (),
        watches: Sequence[Sequence[Body | errors.ApiError]] = (),
        pods: Sequence[Body] = (),
        logs: Mapping[str, Sequence[str]] | None = None,
        runtime: Body | errors.ApiError | None = None,
    ) -> None:
        self._runtime: Body | errors.ApiError = {} if runtime is None else runtime
        self._reads, self._watches = list(reads), [list(events) for events in watches]
        self._pods, self._logs = list(pods), dict(logs or {})
        self.calls: list[tuple[object, ...]] = []

    def apply(self, body: Body, *, dry_run: bool) -> Body:
        self.calls.append(("apply", copy.deepcopy(dict(body)), dry_run))
        json.dumps(body)
        return {**body, "metadata": {**body["metadata"], "uid": "u1", "resourceVersion": "1"}}

    def get(self, name: str) -> Body:
        self.calls.append(("get", name))
        return self._next(self._reads)

    def runtime(self, kind: str, name: str) -> Body:
        self.calls.append(("runtime", kind, name))
        if isinstance(self._runtime, errors.ApiError):
            raise self._runtime
        return self._runtime

    def jobs(self, selector: str) -> list[Body]:
        self.calls.append(("jobs", selector))
        return [body for body in self._reads if not isinstance(body, errors.ApiError)]

    def patch(self, name: str, change: Body) -> Body:
        self.calls.append(("patch", name, change))
        return self._next(self._reads)

    def delete(self, name: str) -> None:
        self.calls.append(("delete", name))

    def watch(self, name: str, version: str, *, seconds: int) -> Iterator[Body]:
        self.calls.append(("watch", name, version))
        for answer in self._watches.pop(0):
            if isinstance(answer, errors.ApiError):
                raise answer
            yield answer

    def pods(self, job: str) -> list[Body]:
        return self._pods

    def events(self, job: str) -> list[Body]:
        return []

    def log(self, pod: str, *, tail: int | None, follow: bool) -> Iterator[str]:
        self.calls.append(("log", pod, tail, follow))
        yield from self._logs[pod]

    @staticmethod
    def _next(answers: list[Body | errors.ApiError]) -> Body:
        answer = answers.pop(0)
        if isinstance(answer, errors.ApiError):
            raise answer
        return answer
