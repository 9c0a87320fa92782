"""The newest answer of the coordinator, kept at hand by a thread; and the chain of who waits for whom."""

import threading
from typing import Protocol

from rljob_api import errors, names, types
from rljob_workers.transport import status as transport_status


class StatusSource(Protocol):
    """Whoever knows the newest status."""

    def latest(self) -> types.RunStatus | None:
        """Return it, None if the coordinator has not answered yet."""


class Poller:
    """Asks once a `period_s` on a thread; an unanswered call leaves the last answer as it is."""

    def __init__(self, client: transport_status.StatusClient, *, period_s: float = 0.5) -> None:
        """Keep the client, which `close` closes; `start` begins."""
        self._client, self._period_s = client, period_s
        self._latest: types.RunStatus | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="status", daemon=True)

    def start(self) -> None:
        """Begin asking."""
        self._thread.start()

    def latest(self) -> types.RunStatus | None:
        """Return the newest answer, None before the first."""
        return self._latest

    def close(self) -> None:
        """Stop asking."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()
        self._client.close()

    def _poll(self) -> None:
        while not self._end.wait(self._period_s):
            try:
                self._latest = self._client.status()
            except errors.RLJobError:
                # A coordinator that starts again answers soon; until then the last answer is the best there is.
                continue


def chain(status: types.RunStatus) -> list[types.Waiting]:
    """Return who waits for whom, from the trainer (or the first that waits) to the end or until a circle closes."""
    by_role = {waiting.role: waiting for waiting in reversed(status.waiting)}
    role = str(names.Role.TRAINER)
    if role not in by_role and status.waiting:
        role = status.waiting[0].role
    links: list[types.Waiting] = []
    while role in by_role and by_role[role] not in links:
        links.append(by_role[role])
        role = by_role[role].on_role
    return links


def stall_chain(status: types.RunStatus, now: float) -> str:
    """Return the chain in words; empty if nobody waits."""
    return "; ".join(
        f"{link.pod or link.role} waits for {link.what} for {max(0.0, now - link.since):.0f} s"
        for link in chain(status)
    )


def culprit(status: types.RunStatus) -> str:
    """Return the role at the end of the chain: the one that is awaited and waits for nobody. Empty if nobody waits."""
    links = chain(status)
    return (links[-1].on_role or links[-1].role) if links else ""
