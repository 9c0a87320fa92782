"""The machine's clocks, times of the Kubernetes API as text and as unix seconds, and a token bucket."""

import datetime
import time
from typing import Protocol


class Clock(Protocol):
    """Time as a collaborator, so that tests decide what time it is."""

    def now(self) -> float:
        """Return unix seconds."""

    def monotonic(self) -> float:
        """Return seconds that never jump."""


class SystemClock:
    """The machine's clocks."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


def to_timestamp(seconds: float) -> str:
    """Return unix seconds as the API server writes them; fractions are cut off."""
    return datetime.datetime.fromtimestamp(int(seconds), tz=datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def to_seconds(text: str | None) -> float | None:
    """Return unix seconds of a time; None for none. Raises ValueError if it is not a RFC 3339 time."""
    return None if text is None else datetime.datetime.fromisoformat(text).timestamp()


class TokenBucket:
    """Holds up to `burst` tokens and gets `per_s` new ones a second. Times are monotonic seconds."""

    def __init__(self, *, per_s: float, burst: float) -> None:
        """Starts full. Raises ValueError if a bound is not positive."""
        if per_s <= 0 or burst < 1:
            raise ValueError(f"need {per_s=} to be above 0 and {burst=} at least 1")
        self._per_s, self._burst = per_s, burst
        self._tokens, self._at = burst, 0.0

    def take(self, now: float) -> float:
        """Take a token and return the seconds to wait before it may be used; takers are served in order."""
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._at) * self._per_s)
        self._at = max(now, self._at)
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._per_s)

    def try_take(self, now: float) -> bool:
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._at) * self._per_s)
        self._at = max(now, self._at)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
