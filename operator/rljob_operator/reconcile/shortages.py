"""Workloads that lack pods: since when that is seen, and what their controllers say of it. Memory only.

The API server refuses pods to the controllers that make them (a ResourceQuota, a LimitRange, an admission policy). A
Deployment has a condition for that, in its own status; a StatefulSet and a Job tell it in Events alone.
"""

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from rljob_operator.model import Child, Pod, Ref, Shortage
from rljob_operator.policies import scheduling

# A controller that makes pods is done by then, and one that may not has said so.
_ASK_AFTER_S = 5.0
_ASK_AGAIN_S, _MOST_ASK_AGAIN_S = 15.0, 300.0
# Whose status says it.
_TELLS = "Deployment"

# Called with a workload; returns what its controller says of pods that it could not make, empty if nothing.
TellFailures = Callable[[Child], Awaitable[str]]


@dataclasses.dataclass(slots=True)
class _Lack:
    since: float
    asked_at: float | None = None
    wait_s: float = _ASK_AGAIN_S
    message: str = ""


class Shortages:
    """What each job's workloads lack, by uid of the workload."""

    def __init__(self, *, now: Callable[[], float]) -> None:
        self._now = now
        self._lacks: dict[str, dict[str, _Lack]] = {}

    async def look(
        self, job: str, children: Iterable[Child], pods: Sequence[Pod], failures: TellFailures
    ) -> Mapping[Ref, Shortage]:
        """Return what lacks pods of the job with this uid; `failures` is asked seldom, and less and less often."""
        short = [child for child in children if child.role is not None and _lacks(child, pods)]
        previous = self._lacks.pop(job, {})
        lacks = {child.uid: previous.get(child.uid) or _Lack(since=self._now()) for child in short}
        if not lacks:
            return {}
        self._lacks[job] = lacks
        for child in short:
            await self._ask(child, lacks[child.uid], failures)
        by_ref = {child.ref: lacks[child.uid] for child in short}
        return {ref: Shortage(since=lack.since, message=lack.message) for ref, lack in by_ref.items()}

    def forget(self, job: str) -> None:
        self._lacks.pop(job, None)

    async def _ask(self, child: Child, lack: _Lack, failures: TellFailures) -> None:
        now = self._now()
        due = lack.since + _ASK_AFTER_S if lack.asked_at is None else lack.asked_at + lack.wait_s
        if child.ref.kind == _TELLS or now < due:
            return
        if lack.asked_at is not None:
            lack.wait_s = min(_MOST_ASK_AGAIN_S, 2 * lack.wait_s)
        lack.asked_at = now
        lack.message = await failures(child) or lack.message


def _lacks(child: Child, pods: Sequence[Pod]) -> bool:
    return not child.deleting and scheduling.num_pods(child, pods) < child.wanted_pods
