"""Where the start of a pod lost time: until it had a node, until its containers ran, until it was ready."""

from collections.abc import Iterable

from rljob_operator.metric_names import LOAD, PULL, SCHEDULE
from rljob_operator.model import Pod


class Starts:
    """The pods of one job whose start was told. Those that were ready before anything was seen are not told of."""

    def __init__(self) -> None:
        """Nothing was seen."""
        self._known: set[str] | None = None

    def observe(self, pods: Iterable[Pod]) -> list[tuple[str, float]]:
        """Return phases and their seconds of the pods that became ready for the first time since the last call.

        A pod whose container was started again before it was ready has no times of its first start: nothing is told.
        """
        ready = [pod for pod in pods if pod.ready]
        new = [] if self._known is None else [pod for pod in ready if pod.uid not in self._known]
        self._known = {pod.uid for pod in ready} | ((self._known or set()) & {pod.uid for pod in pods})
        return [phase for pod in new for phase in _phases(pod)]


def _phases(pod: Pod) -> list[tuple[str, float]]:
    times = (pod.created_at, pod.scheduled_at, pod.started_at, pod.ready_at)
    if pod.restarts or not all(times):
        return []
    # The API server's clock has whole seconds.
    return [(SCHEDULE, times[1] - times[0]), (PULL, times[2] - times[1]), (LOAD, times[3] - times[2])]
