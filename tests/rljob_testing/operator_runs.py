"""Runs of the operator's logic against a FakeCluster: passes, deaths of the operator, and what must hold throughout."""

import itertools
import json
from collections.abc import Callable, Coroutine, Mapping

from rljob_api import enums
from rljob_api.conditions import ConditionType as Type
from rljob_api.manifest.job import RLJob
from rljob_api.manifest.status import JobStatus
from rljob_api.validation.load import load_manifest
from rljob_operator.model import Child, DesiredObjects, Observed, Pod, Ref
from rljob_operator.policies import failure
from rljob_operator.reconcile import conditions
from rljob_operator.reconcile.reconciler import Reconciler
from rljob_testing import condition_rules
from rljob_testing.clock import FakeClock
from rljob_testing.fake_cluster import NUM_NODES, NUM_ROLLOUTS, FakeCluster, OperatorKilled, wanted

KEY = "default/job"


def operator_job(changes: Mapping[str, object] | None = None) -> RLJob:
    """Return a job of two trainer nodes and two rollouts, with `changes` at the top of its spec."""
    spec: dict[str, object] = {
        "maxSteps": 10,
        "model": {"name": "builtin:smollm2-135m-instruct"},
        "data": {"train": [{"name": "sums", "path": "sums.jsonl"}]},
        "verifier": {"rewards": [{"name": "right", "type": "exact"}]},
        "rollout": {"replicas": NUM_ROLLOUTS, "drainSeconds": 60},
        "trainer": {"nodes": NUM_NODES},
        "storage": {"type": "Ephemeral"},
        **(changes or {}),
    }
    metadata = {"name": "job", "uid": "job-uid", "generation": 1}
    return load_manifest(
        json.dumps({"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": metadata, "spec": spec})
    )


class Run:
    """An operator, which is replaced when it dies, and its cluster."""

    def __init__(self, job: RLJob | None = None, *, kill_at: frozenset[int] = frozenset()) -> None:
        self.clock = FakeClock()
        self.cluster = FakeCluster(job or operator_job(), self.clock, kill_at=kill_at)
        self.wanted: Callable[[Observed], DesiredObjects] = wanted
        self.num_deaths = 0
        self._checked = 0
        self._end = (False, False, 0)

    def reconcile(self) -> float | None:
        """Make one pass; a dead operator's successor makes it again."""
        while True:
            operator = Reconciler(self.cluster, desired=self.wanted, clock=self.clock, on_planned=self.cluster.planned)
            try:
                again = finish(operator.reconcile(KEY))
            except OperatorKilled:
                self.num_deaths += 1
                continue
            finally:
                self.check()
            return again

    def condition(self, kind: Type) -> tuple[str, str, str]:
        """Return status, reason and message of a condition of the job."""
        assert self.cluster.job is not None
        assert self.cluster.job.status is not None
        (state,) = (each for each in self.cluster.job.status.conditions if each.type == kind)
        return state.status, state.reason, state.message

    def settle(self, *, most: int = 400) -> None:
        """Let operator and cluster act in turn until neither has anything to do; pods' grace periods pass."""
        for _ in range(most):
            before = self._state()
            self.reconcile()
            self.cluster.settle()
            self.check()
            if self._state() == before and not any(pod.deleting for pod in self.cluster.pods.values()):
                return
            self.clock.tick(0.5)
        raise AssertionError(f"still busy: {self.cluster.calls[-10:]}")

    def _state(self) -> tuple[int, dict[Ref, Child], dict[str, Pod]]:
        return len(self.cluster.calls), dict(self.cluster.children), dict(self.cluster.pods)

    def wait(self, seconds: float) -> None:
        """Let time pass, and everything settle."""
        self.clock.tick(seconds)
        self.settle()

    def until(self, holds: Callable[[], bool], *, most: int = 100) -> None:
        """Let time pass until something holds."""
        for _ in range(most):
            if holds():
                return
            self.wait(5.0)
        raise AssertionError(f"never happened; {self.summary}")

    @property
    def summary(self) -> str:
        """Return the summary in status."""
        job = self.cluster.job
        return "" if job is None or job.status is None else job.status.summary or ""

    def alive(self, role: enums.Role) -> list[str]:
        """Return the pods of a role that run."""
        pods = self.cluster.pods.values()
        return sorted(pod.name for pod in pods if pod.role is role and not pod.is_terminal and not pod.deleting)

    def check(self) -> None:
        """Assert what must hold at any time: 6.1-6.3, 9.2."""
        written, self._checked = self.cluster.statuses[self._checked :], len(self.cluster.statuses)
        for status in written:
            assert condition_rules.contradictions(conditions.statuses(status.conditions)) == []
            assert [one.type for one in status.conditions] == [kind for kind in Type if kind in _types(status)]
        ends = [self._end, *((*_ends(status), status.retry or 0) for status in written)]
        self._end = ends[-1]
        for before, after in itertools.pairwise(ends):
            is_retry = before == (False, True, before[2]) and after == (False, False, after[2]) and after[2] > before[2]
            assert after[:2] >= before[:2] or is_retry, "an end was taken back"
        attempts = {
            pod.attempt
            for pod in self.cluster.pods.values()
            # One on a node that does not answer is fenced, not waited for.
            if pod.role is enums.Role.TRAINER and not pod.is_terminal and not failure.is_lost(pod, now=self.clock.now())
        }
        assert len(attempts) <= 1, f"two trainer attempts alive: {attempts}"


def finish(work: Coroutine[object, object, float | None]) -> float | None:
    """Return the result of a coroutine that waits for nothing: a fake cluster answers at once."""
    try:
        work.send(None)
    except StopIteration as end:
        result: float | None = end.value
        return result
    raise AssertionError("a pass over a fake cluster waited")


def _types(status: JobStatus) -> set[str]:
    return {one.type for one in status.conditions}


def _ends(status: JobStatus) -> tuple[bool, bool]:
    known = conditions.statuses(status.conditions)
    return known[Type.COMPLETE] == "True", known[Type.FAILED] == "True"
