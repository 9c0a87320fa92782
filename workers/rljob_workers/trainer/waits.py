"""Seconds in which the step loop cannot work, counted while they pass.

Counted at its end, a wait would be a jump after a silence: no rate over a window shorter than the wait shows it, and of
one that does not end nothing would be seen at all.
"""

import contextlib
import threading
from collections.abc import Iterator

from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import metrics as metrics_module


def uncounted(_reason: str) -> contextlib.AbstractContextManager[None]:
    """Count nothing: what ranks other than the first wait with."""
    return contextlib.nullcontext()


class Waits:
    """Adds to a counter with the label `reason`. One wait at a time; whoever reads metrics may settle meanwhile."""

    def __init__(self, counter: metrics_module.Counter, clock: clocks.Clock) -> None:
        """Nothing waits yet."""
        self._counter, self._clock = counter, clock
        self._lock = threading.Lock()
        self._reason, self._since = "", 0.0

    @contextlib.contextmanager
    def waiting(self, reason: str) -> Iterator[None]:
        """Count for as long as the block runs, however it ends."""
        with self._lock:
            self._reason, self._since = reason, self._clock.monotonic()
        try:
            yield
        finally:
            self.settle()
            with self._lock:
                self._reason = ""

    def settle(self) -> None:
        """Count what has passed of the wait that goes on, if one does."""
        with self._lock:
            if self._reason:
                now = self._clock.monotonic()
                self._counter.inc(now - self._since, reason=self._reason)
                self._since = now
