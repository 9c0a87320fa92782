"""What a rollout fetched from which kind of source, what it served, and which sources failed. Totals, thread-safe."""

import threading
from collections import Counter

from rljob_api import enums, errors


def failure_of(error: errors.RLJobError) -> enums.SourceFailure:
    """Return the label of a source's failure."""
    if isinstance(error, errors.DigestError):
        return enums.SourceFailure.DIGEST
    if isinstance(error, errors.BusyError):
        return enums.SourceFailure.BUSY
    if isinstance(error, errors.UnavailableError):
        return enums.SourceFailure.UNAVAILABLE
    return enums.SourceFailure.MOVED if isinstance(error, errors.WeightsError) else enums.SourceFailure.REFUSED


class Transfers:
    """Totals since the process began; readers take a copy."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fetched: Counter[enums.SourceKind] = Counter()
        self._failures: Counter[enums.SourceFailure] = Counter()
        self._served = 0

    def fetched(self, kind: enums.SourceKind, num_bytes: int) -> None:
        """Count bytes that were verified."""
        with self._lock:
            self._fetched[kind] += num_bytes

    def served(self, num_bytes: int) -> None:
        """Count bytes that were sent to other rollouts."""
        with self._lock:
            self._served += num_bytes

    def failed(self, error: errors.RLJobError) -> None:
        """Count a source that did not give what it was asked for."""
        with self._lock:
            self._failures[failure_of(error)] += 1

    @property
    def fetched_bytes(self) -> dict[enums.SourceKind, int]:
        with self._lock:
            return dict(self._fetched)

    @property
    def served_bytes(self) -> int:
        return self._served

    @property
    def failures(self) -> dict[enums.SourceFailure, int]:
        with self._lock:
            return dict(self._failures)
