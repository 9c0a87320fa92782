"""What the API server itself says the operator's account asked for: its audit log, by identity, and no one else's."""

import dataclasses
import datetime
import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

READS = frozenset({"get", "list", "watch"})
# Megabytes; never rotated in a test.
_MOST_LOG = "100000"


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """One request that was answered. resource: with its subresource, as rights name it. at: unix seconds.

    body: what was sent, where the policy keeps it. agent: what the sender calls itself.
    """

    verb: str
    group: str
    resource: str
    namespace: str
    name: str
    status: int
    at: float
    body: Mapping[str, Any]
    agent: str = ""

    @property
    def writes(self) -> bool:
        """Return whether it was meant to change something; a Lease that is renewed is not."""
        return self.verb not in READS and self.resource != "leases"


class AuditLog:
    """The log of one API server, which writes it before it answers. user: whose requests are kept."""

    def __init__(self, folder: pathlib.Path, *, user: str, bodies_of: str = "") -> None:
        """Write the policy. bodies_of: namespace whose status writes are kept whole."""
        folder.mkdir(parents=True, exist_ok=True)
        self._policy, self._log, self._user = folder / "policy.yaml", folder / "audit.log", user
        status = [{"group": "rljob.dev", "resources": ["rljobs/status"]}]
        whole = {"level": "Request", "users": [user], "namespaces": [bodies_of], "resources": status}
        rules = [*([whole] if bodies_of else []), {"level": "Metadata", "users": [user]}, {"level": "None"}]
        policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules}
        self._policy.write_text(yaml.safe_dump(policy))

    @property
    def flags(self) -> dict[str, str]:
        """Return the flags of the API server."""
        return {
            "audit-policy-file": str(self._policy),
            "audit-log-path": str(self._log),
            "audit-log-mode": "blocking",
            "audit-log-maxsize": _MOST_LOG,
        }

    def mark(self) -> int:
        """Return the place up to which it is written now."""
        return self._log.stat().st_size if self._log.exists() else 0

    def since(self, mark: int = 0) -> Iterator[Request]:
        """Yield the requests after a mark."""
        if not self._log.exists():
            return
        with self._log.open("rb") as log:
            log.seek(mark)
            for line in log:
                # The last line may still be on its way.
                if line.endswith(b"\n"):
                    yield request(json.loads(line))

    def writes(self, mark: int = 0) -> list[Request]:
        """Return the requests after a mark that were meant to change something."""
        return [one for one in self.since(mark) if one.writes]


def request(record: Mapping[str, Any]) -> Request:
    """Return a record of the log as a request."""
    meant = record.get("objectRef") or {}
    resource = str(meant.get("resource", ""))
    at = datetime.datetime.fromisoformat(str(record["stageTimestamp"]).replace("Z", "+00:00"))
    return Request(
        verb=str(record["verb"]),
        group=str(meant.get("apiGroup", "")),
        resource=f"{resource}/{meant['subresource']}" if meant.get("subresource") else resource,
        namespace=str(meant.get("namespace", "")),
        name=str(meant.get("name", "")),
        status=int((record.get("responseStatus") or {}).get("code", 0)),
        at=at.timestamp(),
        body=record.get("requestObject") or {},
        agent=str(record.get("userAgent", "")),
    )


def transitions(statuses: Iterable[Mapping[str, Any]]) -> int:
    """Return how many of the statuses, in the order in which they were written, changed a condition's status."""
    before: dict[str, str] = {}
    count = 0
    for status in statuses:
        now = {one["type"]: one["status"] for one in status.get("conditions") or ()}
        count += now != before
        before = now
    return count
