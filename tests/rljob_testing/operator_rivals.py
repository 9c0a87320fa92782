"""Two operators at once on a FakeCluster: caches that lag, conflicts, answers that get lost, deaths at any call.

    watches (late) --> StaleView --> pass of one operator, one call a turn --> FakeCluster <-- the same of the other
Whose turn it is, what a watch has reported by then, and what goes wrong, comes from one seeded generator. A fake of
`LiveCluster` and its cache: reads may be old, answers to own writes are known at once, live reads are true.
"""

import dataclasses
import random
from collections.abc import Callable, Coroutine, Generator
from typing import Literal, TypeVar

from rljob_api.manifest.job import RLJob
from rljob_api.manifest.status import JobStatus
from rljob_operator.kube.client import ApiError
from rljob_operator.model import POD, RLJOB, Annotate, Apply, Delete, Observed, PatchStatus, Ref, Scale, ref_of
from rljob_operator.reconcile import status
from rljob_operator.reconcile.cluster import OutOfDateError
from rljob_operator.reconcile.reconciler import Reconciler
from rljob_testing.fake_cluster import FakeCluster, wanted
from rljob_testing.operator_runs import KEY, Run, operator_job

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
Stream = Literal["job", "children", "pods"]
_STREAMS: tuple[Stream, ...] = ("job", "children", "pods")
_NUM_OPERATORS = 2
# Calls that one bustle lets happen: several passes of each.
_MOST_TURNS = 40


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Chances, 0..1. hears: that a watch shows all it knows before a turn. conflicts: that a write meets one.

    lost: that a write succeeds and its answer is lost. dies: that the operator is killed before a turn.
    """

    hears: float = 1.0
    conflicts: float = 0.0
    lost: float = 0.0
    dies: float = 0.0


class _Turn:
    """Awaited before each request: the other operator may act."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class StaleView:
    """Implements `reconciler.Cluster` for one operator; a new one has just listed everything."""

    def __init__(self, cluster: FakeCluster, faults: Callable[[], Faults], chance: random.Random) -> None:
        self._cluster, self._faults, self._chance = cluster, faults, chance
        for stream in _STREAMS:
            self.hear(stream)

    def hear(self, stream: Stream) -> None:
        """Let a watch tell all that has happened."""
        match stream:
            case "job":
                self._job, self._version = self._cluster.job, self._cluster.version
            case "children":
                self._children = dict(self._cluster.children)
            case "pods":
                self._pods = dict(self._cluster.pods)

    async def observe(self, key: str, *, live: bool) -> Observed | None:
        if live:
            for stream in _STREAMS:
                await _Turn()
                self.hear(stream)
        if self._job is None:
            return None
        return Observed(
            job=self._job,
            version=self._version,
            children=dict(self._children),
            pods=tuple(sorted(self._pods.values(), key=lambda pod: pod.name)),
            report=self._cluster.report,
        )

    async def write_status(self, seen: Observed, status: JobStatus) -> None:
        await self._sent()
        try:
            await self._cluster.write_status(seen, status)
        except OutOfDateError:
            self.hear("job")
            raise
        self._answered()
        self.hear("job")

    async def apply(self, seen: Observed, action: Apply) -> None:
        ref = ref_of(action.manifest)
        if not action.uid:
            await _Turn()
            if ref in self._cluster.children:
                self._look(ref)
                raise OutOfDateError(f"{ref} is there already")
        await self._sent()
        try:
            await self._cluster.apply(seen, action)
        except OutOfDateError:
            self._look(ref)
            raise
        self._answered()
        self._look(ref)

    async def scale(self, seen: Observed, action: Scale) -> None:
        await self._sent()
        await self._cluster.scale(seen, action)
        self._answered()
        self._look(action.ref)

    async def annotate(self, seen: Observed, action: Annotate) -> None:
        await self._sent()
        await self._cluster.annotate(seen, action)
        self._answered()
        self._look(action.ref)

    async def patch_status(self, seen: Observed, action: PatchStatus) -> None:
        await self._sent()
        await self._cluster.patch_status(seen, action)
        self._answered()
        self._look(action.ref)

    async def delete(self, seen: Observed, action: Delete) -> None:
        await self._sent()
        await self._cluster.delete(seen, action)
        self._answered()
        self._look(action.ref)

    async def _sent(self) -> None:
        await _Turn()
        if self._chance.random() < self._faults().conflicts:
            raise OutOfDateError("a conflict")

    def _answered(self) -> None:
        if self._chance.random() < self._faults().lost:
            raise ApiError("no answer")

    def _look(self, ref: Ref) -> None:
        """Take one object from the cluster: the answer to a write, or a read after a refusal."""
        if ref.kind == RLJOB:
            self.hear("job")
        elif ref.kind == POD:
            _copy(self._pods, self._cluster.pods, ref.name)
        else:
            _copy(self._children, self._cluster.children, ref)


def _copy(to: dict[_Key, _Value], source: dict[_Key, _Value], key: _Key) -> None:
    if key in source:
        to[key] = source[key]
    else:
        to.pop(key, None)


class _Operator:
    """One process: its view, and the pass that it is in."""

    def __init__(self, run: "Rivals") -> None:
        self.view = StaleView(run.cluster, lambda: run.faults, run.chance)
        self._reconciler = Reconciler(self.view, desired=wanted, clock=run.clock)
        self._pass: Coroutine[object, object, float | None] | None = None
        self.again_s: float | None = None

    def turn(self) -> bool:
        """Continue to the next request; return whether a pass ended."""
        if self._pass is None:
            self._pass = self._reconciler.reconcile(KEY)
        try:
            self._pass.send(None)
        except StopIteration as done:
            self._pass, self.again_s = None, done.value
            return True
        except (OutOfDateError, ApiError):
            # A pass that failed is recreated, as the queue does.
            self._pass = None
            return True
        return False

    @property
    def holds_back(self) -> bool:
        """Return whether it comes again so soon that a status may be waiting for its time."""
        return self.again_s is not None and self.again_s <= status.BETWEEN_COUNTS_S

    def die(self) -> None:
        """End in the middle of whatever it does."""
        if self._pass is not None:
            self._pass.close()
            self._pass = None


class Rivals(Run):
    """A run under two operators; what goes wrong while it is busy ends when it settles."""

    def __init__(self, job: RLJob | None = None, *, seed: int = 0, faults: Faults | None = None) -> None:
        super().__init__(job or operator_job())
        self.chance = random.Random(seed)
        self.faults = self._given = faults or Faults()
        self._operators = [_Operator(self) for _ in range(_NUM_OPERATORS)]

    def reconcile(self) -> float | None:
        """Give both operators some turns, in any order."""
        for _ in range(self.chance.randrange(1, _MOST_TURNS)):
            self._turn(self.chance.randrange(_NUM_OPERATORS))
        return None

    def _turn(self, index: int) -> bool:
        operator = self._operators[index]
        if self.chance.random() < self.faults.dies:
            operator.die()
            self.num_deaths += 1
            operator = self._operators[index] = _Operator(self)
        for stream in _STREAMS:
            if self.chance.random() < self.faults.hears:
                operator.view.hear(stream)
        ended = operator.turn()
        self.check()
        return ended

    def settle(self, *, most: int = 400) -> None:
        """Let everything happen until neither operator, with all watches up to date, has anything left to do."""
        for _ in range(most):
            before = self._state()
            self.reconcile()
            self.cluster.settle()
            self.check()
            if self._state() == before and not self._gone_soon() and self._quiet():
                return
            self.clock.tick(0.5)
        raise AssertionError(f"still busy: {self.cluster.calls[-10:]}")

    def _gone_soon(self) -> bool:
        return any(pod.deleting for pod in self.cluster.pods.values())

    def _quiet(self) -> bool:
        before, self.faults = self._state(), Faults()
        for index in range(_NUM_OPERATORS):
            # What it was in the middle of rests on what it saw before.
            for _ in range(2):
                while not self._turn(index):
                    pass
        self.faults = self._given
        return self._state() == before and not any(operator.holds_back for operator in self._operators)
