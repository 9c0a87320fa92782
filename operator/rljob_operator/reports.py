"""What coordinators reported last, which of them are silent, and whose numbers are shown next. No I/O.

A report makes the job's key due at once if it decides something: the run's phase, its first step, the first word after
a silence. Mere numbers wait for their turn, in the order in which they came: of many jobs none waits for long because
another says more.
"""

import dataclasses
from collections.abc import Callable, Set

from rljob_api import types
from rljob_operator.clock import TokenBucket
from rljob_operator.model import Report

# Status writes for the sake of numbers alone, over all jobs (docs/design/operator.md#s-7-5).
WRITES_PER_S = 20.0
# A coordinator counts as silent once it was tried so often in vain, over so long: one connection that breaks, or one
# try that comes late on a busy machine, says nothing.
SILENT_S, SILENT_TRIES = 30.0, 3


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A job whose coordinator has a pod: key in the queue, uid, and the address of its Service; empty where it cannot
    be reached, for want of a certificate to show.
    """

    key: str
    uid: str
    address: str


@dataclasses.dataclass(slots=True)
class _Silence:
    """Since when nothing was heard of a coordinator, in unix seconds, and how often it was tried meanwhile."""

    since: float
    tries: int = 0


def is_significant(before: types.RunStatus | None, now: types.RunStatus) -> bool:
    """Return whether a report says something that decides, not just a number."""
    return before is None or before.phase is not now.phase or _progress(before) != _progress(now)


def _progress(run: types.RunStatus) -> tuple[object, ...]:
    """Return whether the run has a step, and which of its trainer's attempts have one of their own."""
    return run.step > 0, tuple((attempt.attempt, attempt.first_step_at > 0) for attempt in run.attempts)


def reported_fields(run: types.RunStatus) -> tuple[object, ...]:
    scores = tuple((result.suite, result.accuracy, result.step) for result in run.evaluations)
    versions = (run.published_version, run.live_version, run.oldest_serving_version, run.version_lag_steps)
    counts = tuple(sorted(run.trajectories.items()))
    return (run.step, run.phase, versions, counts, run.reward_mean, run.checkpoint_step, run.config_generation, scores)


class Reports:
    """The last report of each job. Times: `now` is unix seconds, `monotonic` never jumps."""

    def __init__(
        self, *, enqueue: Callable[[str], None], now: Callable[[], float], monotonic: Callable[[], float]
    ) -> None:
        self._enqueue, self._now, self._monotonic = enqueue, now, monotonic
        self._reports: dict[str, Report] = {}
        self._last_shown: dict[str, tuple[object, ...]] = {}
        # Keys of jobs whose numbers are to be shown, by uid, in the order in which they came.
        self._unshown: dict[str, str] = {}
        self._silences: dict[str, _Silence] = {}
        self._silent = set[str]()
        self._writes = TokenBucket(per_s=WRITES_PER_S, burst=WRITES_PER_S)

    def report_of(self, uid: str) -> Report | None:
        return self._reports.get(uid)

    def silent_since(self, uid: str) -> float | None:
        return self._silences[uid].since if uid in self._silent else None

    def heard(self, target: Target, run: types.RunStatus) -> None:
        """Keep what a coordinator says."""
        before = self._reports.get(target.uid)
        self._reports[target.uid] = Report(run=run, read_at=self._now())
        self._silences.pop(target.uid, None)
        was_silent = target.uid in self._silent
        self._silent.discard(target.uid)
        if was_silent or is_significant(before.run if before else None, run):
            self._show(target.uid, target.key)
        elif reported_fields(run) != self._last_shown.get(target.uid):
            self._unshown.setdefault(target.uid, target.key)
        else:
            self._unshown.pop(target.uid, None)

    def show_next(self) -> None:
        """Make keys due whose numbers have changed, as many as may be written now."""
        while self._unshown and self._writes.try_take(self._monotonic()):
            uid = next(iter(self._unshown))
            self._show(uid, self._unshown[uid])

    def _show(self, uid: str, key: str) -> None:
        self._unshown.pop(uid, None)
        self._last_shown[uid] = reported_fields(self._reports[uid].run)
        self._enqueue(key)

    def failed(self, target: Target, *, since: float | None = None) -> None:
        """Note that a coordinator was tried in vain; `since`: that nothing was heard from then on, unix seconds."""
        began = self._now() if since is None else since
        silence = self._silences.setdefault(target.uid, _Silence(since=began))
        silence.tries += 1
        is_silent = silence.tries >= SILENT_TRIES and self._now() - silence.since >= SILENT_S
        if is_silent and target.uid not in self._silent:
            self._silent.add(target.uid)
            self._enqueue(target.key)

    def keep_only(self, uids: Set[str]) -> None:
        """Forget jobs of which nothing is heard any more."""
        for table in (self._reports, self._last_shown, self._unshown, self._silences):
            for uid in [uid for uid in table if uid not in uids]:
                del table[uid]
        self._silent &= uids

    def age_s(self, share: float = 0.99) -> float:
        """Return the age that a share of the last reports does not exceed, silent coordinators left out; 0 for none."""
        # Copies in one step: the page of metrics is made on another thread.
        reports, silent = dict(self._reports), set(self._silent)
        now = self._now()
        ages = sorted(now - report.read_at for uid, report in reports.items() if uid not in silent)
        return max(0.0, ages[min(len(ages) - 1, int(share * len(ages)))]) if ages else 0.0
