"""Durations that metrics of all jobs report, each from what the passes observed; time is passed in.

SpecChanges: from a change of the spec to each kind of child, `rljob_operator_spec_to_child_seconds`. A change is
answered once a pass finds no child to change: what is applied later waited for something else, as a trainer's budget
waits for the run, and says nothing of the operator's speed. Starts: where a pod's start lost time, until it had a node,
until its containers ran, until it was ready. Recoveries: from a lost pod until its role is whole and the next step is
finished.
"""

import dataclasses
from collections.abc import Iterable, Mapping

from rljob_api import enums
from rljob_operator.model import Pod
from rljob_operator.telemetry.metric_names import LOAD, PULL, SCHEDULE


@dataclasses.dataclass(slots=True)
class _Change:
    generation: int
    seen_at: float
    kinds: set[str]
    answered: bool = False


class SpecChanges:
    """The last change of each job's spec. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._last: dict[str, _Change] = {}

    def saw(self, key: str, generation: int, *, now: float) -> None:
        """Note a job as a watch reports on it; the same generation again is not a change."""
        change = self._last.get(key)
        if change is None or change.generation != generation:
            self._last[key] = _Change(generation, now, set())

    def planned(self, key: str, generation: int, *, applies: bool) -> None:
        """Note whether a pass over a job of that generation had a child to apply."""
        change = self._last.get(key)
        if change is not None and change.generation == generation and not applies:
            change.answered = True

    def applied(self, key: str, kind: str, *, now: float) -> float | None:
        """Return the seconds from the change to this child of it; None if it is not the first of its kind, or late."""
        change = self._last.get(key)
        if change is None or change.answered or kind in change.kinds:
            return None
        change.kinds.add(kind)
        return now - change.seen_at

    def forget(self, key: str) -> None:
        self._last.pop(key, None)


class Starts:
    """The pods of one job whose start was reported. Those ready before anything was observed are left out."""

    def __init__(self) -> None:
        self._ready_uids: set[str] | None = None

    def observe(self, pods: Iterable[Pod]) -> list[tuple[str, float]]:
        """Return phases and their seconds of the pods that became ready for the first time since the last call.

        A pod whose container was started again before it was ready has no times of its first start: nothing is
        reported.
        """
        ready = [pod for pod in pods if pod.ready]
        new = [] if self._ready_uids is None else [pod for pod in ready if pod.uid not in self._ready_uids]
        self._ready_uids = {pod.uid for pod in ready} | ((self._ready_uids or set()) & {pod.uid for pod in pods})
        return [phase for pod in new for phase in _phases(pod)]


def _phases(pod: Pod) -> list[tuple[str, float]]:
    times = (pod.created_at, pod.scheduled_at, pod.started_at, pod.ready_at)
    if pod.restarts or not all(times):
        return []
    # The API server's clock has whole seconds.
    return [(SCHEDULE, times[1] - times[0]), (PULL, times[2] - times[1]), (LOAD, times[3] - times[2])]


@dataclasses.dataclass(slots=True)
class _Loss:
    """An open failure: unix seconds, and the lowest step that was seen since."""

    since: float
    step: int


class Recoveries:
    """The open failures of one job."""

    def __init__(self) -> None:
        self._open: dict[enums.Role, _Loss] = {}

    def observe(
        self, *, lost: Iterable[enums.Role], whole: Mapping[enums.Role, bool], step: int, now: float
    ) -> list[tuple[enums.Role, float]]:
        """Return the roles that have recovered and after how many seconds.

        lost: roles that lost a pod since the last call. whole: whether a role has all its pods ready. step: finished
        steps of the run; they may fall when the trainer goes back to a checkpoint. A role has recovered when it is
        whole and a step was finished after the loss.
        """
        for role in lost:
            self._open.setdefault(role, _Loss(since=now, step=step))
        for loss in self._open.values():
            loss.step = min(loss.step, step)
        recovered = [role for role, loss in self._open.items() if whole.get(role, False) and step > loss.step]
        return [(role, max(0.0, now - self._open.pop(role).since)) for role in recovered]

    def clear(self) -> None:
        """Forget what is open: the run is not meant to continue."""
        self._open.clear()
