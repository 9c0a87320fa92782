"""The newest answer of the coordinator, kept at hand by a thread."""

import threading
from typing import Protocol

from rljob_api import errors, types
from rljob_workers.rpc import status as transport_status


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
