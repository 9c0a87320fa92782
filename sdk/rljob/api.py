"""The requests that are made of an API server."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

# An object as the API server has it.
Object = Mapping[str, Any]


class Api(Protocol):
    """Jobs of one namespace and what belongs to them; each call raises ApiError."""

    namespace: str

    def apply(self, body: Object, *, dry_run: bool) -> Object: ...
    def get(self, name: str) -> Object: ...
    def runtime(self, kind: str, name: str) -> Object:
        """Return a ClusterRLJobRuntime, or an RLJobRuntime of the namespace."""

    def jobs(self, selector: str) -> list[Object]: ...
    def patch(self, name: str, change: Object) -> Object: ...
    def delete(self, name: str) -> None: ...
    def watch(self, name: str, version: str, *, seconds: int) -> Iterator[Object]:
        """Yield watch events after a resource version, for so many seconds at most."""

    def pods(self, job: str) -> list[Object]: ...
    def events(self, job: str) -> list[Object]: ...
    def log(self, pod: str, *, tail: int | None, follow: bool) -> Iterator[str]:
        """Yield the lines of a pod, each with its time before it."""
