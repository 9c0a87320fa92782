"""One pass over one job: observe, plan, act. It takes no decision itself."""

import dataclasses
import functools
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol

from rljob_api.manifest.status import JobStatus
from rljob_operator.clock import Clock
from rljob_operator.model import (
    POD_MAKERS,
    Action,
    Annotate,
    Apply,
    Delete,
    DesiredObjects,
    Observed,
    PatchStatus,
    Plan,
    Ref,
    Refusal,
    Scale,
    StatusWrite,
    earliest,
)
from rljob_operator.reconcile import conditions
from rljob_operator.reconcile import status as reporting
from rljob_operator.reconcile.desired import signature
from rljob_operator.reconcile.plan import plan

# After a pass that changed something: long enough for controllers to have begun.
_SETTLED_S = 0.5


class Cluster(Protocol):
    """What a pass needs of Kubernetes and of the job's coordinator."""

    async def observe(self, key: str, *, live: bool) -> Observed | None:
        """Return what is known of a job; None if it is gone. live: read just now, not from a cache."""

    async def write_status(self, observed: Observed, status: JobStatus) -> None:
        """Write the status; nothing happens if the job was deleted or replaced."""

    async def apply(self, observed: Observed, action: Apply) -> Refusal | None:
        """Create or change a child; return why that was refused, as the others do."""

    async def scale(self, observed: Observed, action: Scale) -> Refusal | None:
        """Set a workload's replicas; nothing happens if it is gone."""

    async def annotate(self, observed: Observed, action: Annotate) -> Refusal | None:
        """Set annotations and labels of an object; nothing happens if it is gone."""

    async def patch_status(self, observed: Observed, action: PatchStatus) -> Refusal | None:
        """Change fields of a child's status; raise what has the pass repeated if it is not what it was."""

    async def delete(self, observed: Observed, action: Delete) -> Refusal | None:
        """Delete an object; nothing happens if it is gone."""


Request = Callable[[], Awaitable[Refusal | None]]
# Sends requests that need not wait for each other and returns what each returned, or the exception that it raised.
AtOnce = Callable[[Sequence[Request]], Awaitable[Sequence[Refusal | BaseException | None]]]


async def one_by_one(requests: Sequence[Request]) -> Sequence[Refusal | BaseException | None]:
    """Send requests in their order. Raises what the first that fails raises; the others are not sent."""
    return [await request() for request in requests]


def waves(actions: Sequence[Action]) -> Iterator[Sequence[Action]]:
    """Yield the actions in their order, divided where one has to wait for those before it.

    What is applied before pods, what makes pods, and what is applied after them are a wave each; all else goes alone.
    """
    for place, wave in itertools.groupby(enumerate(actions), key=_place):
        del place
        yield [action for _, action in wave]


def _place(numbered: tuple[int, Action]) -> tuple[bool, int]:
    number, action = numbered
    if isinstance(action, Apply):
        return action.ref.kind in POD_MAKERS, -1
    return False, number


def only_begins(actions: Sequence[Action]) -> bool:
    """Return whether actions only report and make children: these can wait, an end or an edit cannot."""
    return all(isinstance(each, StatusWrite) or (isinstance(each, Apply) and not each.uid) for each in actions)


def _ignore(observed: Observed, planned: Plan, desired: DesiredObjects) -> None:
    pass


def _never(key: str) -> bool:  # noqa: ARG001  # the shape of WorkQueue.gives_way
    return False


class Reconciler:
    """Runs passes. `desired` gives the children of an active job; `on_planned` hears what follows from them.

    at_once: how the requests of a wave are sent. gives_way: asked before a pass that has more to send than one request
    and may wait: whether to send one, as there will be another pass for the rest.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        desired: Callable[[Observed], DesiredObjects],
        clock: Clock,
        on_planned: Callable[[Observed, Plan, DesiredObjects], None] = _ignore,
        at_once: AtOnce = one_by_one,
        gives_way: Callable[[str], bool] = _never,
    ) -> None:
        self._cluster, self._desired, self._clock, self._on_planned = cluster, desired, clock, on_planned
        self._at_once, self._gives_way = at_once, gives_way
        # When each job's status was written, by uid: memory only, after a start the first write is due at once.
        self._written_at: dict[str, float] = {}

    def forget(self, uid: str) -> None:
        self._written_at.pop(uid, None)

    async def reconcile(self, key: str) -> float | None:
        """Do what a job needs; return the seconds after which to look again, None to wait for a change.

        Raises what the cluster raises: the actions that are left are planned again.
        """
        before, desired = None, DesiredObjects()
        for live in (False, True):
            observed = await self._cluster.observe(key, live=live)
            if observed is None:
                return None
            now = self._clock.now()
            # What was just read is mostly what was known: the same children follow from it.
            if before is None or signature(before) != signature(observed) or before.quota != observed.quota:
                desired = self._desired(observed)
            before = observed
            planned = plan(observed, desired, now=now)
            self._on_planned(observed, planned, desired)
            # What cannot be taken back rests on objects that were just read.
            if live or not planned.irrevocable:
                actions = planned.actions
                if len(actions) > 1 and only_begins(actions) and self._gives_way(key):
                    planned = dataclasses.replace(planned, actions=actions[:1])
                return await self._act(observed, planned)
        return None

    async def _act(self, observed: Observed, planned: Plan) -> float | None:
        withheld_s, moved, refused = None, False, set[Ref]()
        for wave in waves(planned.actions):
            first = wave[0]
            if isinstance(first, StatusWrite):
                withheld_s = await self._write(observed, first.status)
                # Some children exist only while a condition holds, and this pass saw what held before.
                before, after = (conditions.statuses(each.conditions) for each in (observed.status, first.status))
                moved |= withheld_s is None and before != after
                continue
            requests = [
                functools.partial(self._do, observed, action)
                for action in wave
                if not isinstance(action, StatusWrite)
                and not (isinstance(action, Apply) and refused & set(action.needs))
            ]
            moved |= bool(requests)
            outcomes = await self._at_once(requests)
            failure = next((outcome for outcome in outcomes if isinstance(outcome, BaseException)), None)
            if failure is not None:
                raise failure
            refused |= {outcome.ref for outcome in outcomes if isinstance(outcome, Refusal)}
        again_s = None if planned.again_at is None else max(0.0, planned.again_at - self._clock.now())
        # The watch shows nothing of a change that is known from the answer to our own write.
        return earliest(again_s, withheld_s, _SETTLED_S if moved else None)

    async def _write(self, observed: Observed, status: JobStatus) -> float | None:
        """Write a status, or return the seconds that it has to wait."""
        uid, now = observed.job.metadata.uid, self._clock.now()
        left_s = reporting.write_wait_s(observed.status, status, written_at=self._written_at.get(uid), now=now)
        if left_s:
            return left_s
        await self._cluster.write_status(observed, status)
        self._written_at[uid] = now
        return None

    async def _do(self, observed: Observed, action: Apply | Scale | Annotate | PatchStatus | Delete) -> Refusal | None:
        match action:
            case Apply():
                return await self._cluster.apply(observed, action)
            case Scale():
                return await self._cluster.scale(observed, action)
            case Annotate():
                return await self._cluster.annotate(observed, action)
            case PatchStatus():
                return await self._cluster.patch_status(observed, action)
            case Delete():
                return await self._cluster.delete(observed, action)
