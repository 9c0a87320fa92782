"""Whether something still moves: what a stream is ended by, since its length alone says nothing of its time."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

_LOOK_S = 1.0


class StallWatch:
    """Whether a transfer still moves. `moved` is called by the thread that moves bytes, `expired` by another."""

    def __init__(self, idle_s: float, *, now: Callable[[], float] = time.monotonic) -> None:
        """idle_s: how long nothing may move."""
        self._now = now
        self._end = now() + idle_s
        self._idle_s = idle_s

    def moved(self, *, idle_s: float | None = None) -> None:
        """Say that something went on; with idle_s, how long nothing may move from now on."""
        self._idle_s = self._idle_s if idle_s is None else idle_s
        self._end = self._now() + self._idle_s

    def expired(self) -> bool:
        return self._now() > self._end

    @contextlib.contextmanager
    def cancelling(self, cancel: Callable[[], object], *, look_s: float = _LOOK_S) -> Iterator[None]:
        """Call `cancel` once if nothing moves for too long while the block runs; looks every `look_s`."""
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(look_s):
                if self.expired():
                    cancel()
                    return

        thread = threading.Thread(target=look, name="stall-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
