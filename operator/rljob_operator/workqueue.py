"""Which job is reconciled next: one entry per key, one run per key at a time, a bounded number of keys at once.

    enqueue --> due --> taken --> done(ok)      : forgotten, unless enqueued meanwhile or to come again later
                 ^        |---> done(failed)    : again after 0.5 s, 1 s, 2 s, .. 5 min, with jitter
                 |--------|
A key that waits or runs for long never holds up another. Times are monotonic seconds.
"""

import dataclasses
import random
from typing import Protocol

_FIRST_BACKOFF_S = 0.5
_MOST_BACKOFF_S = 300.0


class MonotonicClock(Protocol):
    """Time that never jumps."""

    def monotonic(self) -> float:
        """Return seconds."""


@dataclasses.dataclass(slots=True)
class _Entry:
    due: float
    since: float


class WorkQueue:
    """Keys and when they are due; single-threaded, no I/O."""

    def __init__(self, *, clock: MonotonicClock, rng: random.Random, concurrency: int = 8) -> None:
        """Start empty. Raises ValueError if `concurrency` is below 1."""
        if concurrency < 1:
            raise ValueError(f"need {concurrency=} to be at least 1")
        self._clock, self._rng, self._concurrency = clock, rng, concurrency
        self._waiting: dict[str, _Entry] = {}
        self._running: set[str] = set()
        self._failures: dict[str, int] = {}

    def __len__(self) -> int:
        """Return how many keys wait, running ones not counted."""
        return len(self._waiting)

    def enqueue(self, key: str, *, after_s: float = 0.0) -> None:
        """Make `key` due after `after_s` at the latest; the earlier of two times counts."""
        now = self._clock.monotonic()
        known = self._waiting.get(key)
        due = now + max(0.0, after_s)
        if known is None:
            self._waiting[key] = _Entry(due=due, since=due)
        else:
            known.due, known.since = min(known.due, due), min(known.since, due)

    def take(self) -> str | None:
        """Return the key that is due longest and mark it as running; None if none may start now."""
        if len(self._running) >= self._concurrency:
            return None
        now = self._clock.monotonic()
        due = [(entry.due, key) for key, entry in self._waiting.items() if self._may_start(key, entry, now)]
        if not due:
            return None
        _, key = min(due)
        del self._waiting[key]
        self._running.add(key)
        return key

    def _may_start(self, key: str, entry: _Entry, now: float) -> bool:
        return entry.due <= now and key not in self._running

    def done(self, key: str, *, again_after_s: float | None = None) -> None:
        """Record that a run of `key` succeeded; its backoff starts anew."""
        self._running.discard(key)
        self._failures.pop(key, None)
        if again_after_s is not None:
            self.enqueue(key, after_s=again_after_s)

    def failed(self, key: str, *, most_s: float = _MOST_BACKOFF_S) -> float:
        """Record that a run of `key` failed and return the seconds until it comes again without a change."""
        self._running.discard(key)
        count = self._failures[key] = self._failures.get(key, 0) + 1
        delay = min(most_s, _FIRST_BACKOFF_S * 2.0 ** min(count - 1, 10))
        # Half of it is left to chance, so that keys that failed together do not come back together.
        jittered = delay * (0.5 + 0.5 * self._rng.random())
        due = self._clock.monotonic() + jittered
        self._waiting[key] = _Entry(due=due, since=due)
        return jittered

    def next_due_s(self) -> float | None:
        """Return the seconds until a key can start, 0 if one can now; None if only a change or an end can bring one."""
        if len(self._running) >= self._concurrency:
            return None
        now = self._clock.monotonic()
        return min((max(0.0, entry.due - now) for key, entry in self._waiting.items() if key not in self._running),
                   default=None)  # fmt: skip

    @property
    def has_room(self) -> bool:
        """Return whether fewer keys run than may."""
        return len(self._running) < self._concurrency

    def oldest_s(self) -> float:
        """Return for how long the longest overdue key has waited, 0 if none is overdue."""
        now = self._clock.monotonic()
        return max((now - entry.since for entry in self._waiting.values() if entry.since < now), default=0.0)
