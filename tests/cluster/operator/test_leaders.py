"""Two operators as processes on a real API server: one leads. It is killed, stopped where it is, and asked to end.

Who wrote what, and when, is the API server's own audit log, in which each process has a name of its own.
"""

import itertools
import pathlib
import time
import zlib
from collections.abc import Iterator

import pytest

from rljob_api import enums
from rljob_operator.kube import kinds
from rljob_testing import operator_installation
from rljob_testing.operator_api import ClusterApi
from rljob_testing.operator_audit import Request
from rljob_testing.operator_installation import Installed
from rljob_testing.operator_load import Load, Shape, StandIn, standing_in
from rljob_testing.operator_process import OperatorProcess
from rljob_testing.operator_series import total
from rljob_testing.operator_stage import IMAGES

TERMS = {"leaseSeconds": 10, "renewSeconds": 6, "retrySeconds": 2}
# Lease and retry, and what an API server and a pass take.
TAKEN_OVER_S, HANDED_OVER_S = 15.0, 3.0
WITHIN_S = 120.0
# Longer than a lease and a retry.
FROZEN_S = 14.0
NUM_JOBS = 12
SHAPE = Shape(minimal=True)


class Pair:
    """Operators a and b of one namespace, its jobs, and what both wrote there."""

    def __init__(self, installed: Installed, folder: pathlib.Path, namespace: str, coordinator: str) -> None:
        self._api, self._audit = ClusterApi(installed.cluster), installed.audit
        self.namespace, self._mark = namespace, installed.audit.mark()
        settings = {
            "watchNamespaces": [namespace],
            "jobs": {"images": dict(IMAGES)},
            "leaderElection": {"enabled": True, "namespace": operator_installation.NAMESPACE, **TERMS},
        }
        self.operators = {
            name: OperatorProcess(
                folder / name, kubeconfig=installed.kubeconfig, coordinators={namespace: coordinator},
                settings=settings, identity=f"{namespace}-{name}",
            )
            for name in "ab"
        }  # fmt: skip
        self.load = Load(self._api, [namespace], check=lambda: None)

    def start(self) -> tuple[OperatorProcess, OperatorProcess]:
        """Start both; return the one that leads and the one that waits, both ready."""
        for operator in self.operators.values():
            operator.start()
        for operator in self.operators.values():
            operator.ready()
        self.load.until(lambda: len(self.leaders()) == 1, within_s=WITHIN_S)
        (leader,) = self.leaders()
        (other,) = set(self.operators) - {leader}
        return self.operators[leader], self.operators[other]

    def leaders(self) -> list[str]:
        """Return who says that it leads."""
        return [name for name, each in self.operators.items() if total(each.series(), "rljob_operator_leader") == 1]

    def follows(self, number: int, replicas: int) -> float:
        """Edit a job and return the seconds until its rollouts follow."""
        return self.load.replicas_follow(number, replicas, within_s=WITHIN_S)

    def writes(self) -> list[Request]:
        """Return what both wrote in the namespace, in order."""
        return [each for each in self._audit.writes(self._mark) if each.namespace == self.namespace]

    def writers(self) -> list[str]:
        """Return who wrote, one entry for each time that the writer changed."""
        return [agent for agent, _ in itertools.groupby(each.agent for each in self.writes())]

    def end(self) -> None:
        """End both and remove the jobs."""
        for operator in self.operators.values():
            operator.end()
        self._api.delete_all(kinds.RLJOB, self.namespace)
        self._api.close()


@pytest.fixture
def stand_in() -> Iterator[tuple[StandIn, str]]:
    with standing_in() as both:
        yield both


@pytest.fixture
def pair(
    installed: Installed, stand_in: tuple[StandIn, str], tmp_path: pathlib.Path, request: pytest.FixtureRequest
) -> Iterator[Pair]:
    namespace = f"leaders-{zlib.crc32(request.node.name.encode())}"
    both = Pair(installed, tmp_path, namespace, stand_in[1])
    try:
        yield both
    finally:
        both.end()


def _made_once(pair: Pair, num_jobs: int) -> None:
    """See that every job has all of its children, and that no object was made twice."""
    pair.load.until(lambda: pair.load.count("Job") == num_jobs, within_s=WITHIN_S)
    made = [(each.resource, each.name) for each in pair.writes() if each.status == 201 and each.resource != "events"]
    assert sorted(made) == sorted(set(made))
    # Counted where they are: an object is there before the log has its request, and of a sender that was killed the log
    # may have no answer.
    names = sorted(each["name"] for each in pair.load.metadata(kinds.BY_NAME["Job"]))
    assert names == sorted(f"job-{number}-trainer-1" for number in range(num_jobs))


@pytest.mark.timeout(900)
def test_a_leader_that_is_killed_among_starts_is_followed_in_time_and_nothing_is_made_twice(pair: Pair) -> None:
    leader, _ = pair.start()
    pair.load.create(SHAPE, 0, NUM_JOBS)
    pair.load.until(lambda: pair.load.count("Job") > 0, within_s=WITHIN_S)
    leader.kill()
    killed_at, before = time.time(), len(pair.writers())
    assert before == 1, "the other one wrote nothing"
    _made_once(pair, NUM_JOBS)
    first, second = pair.writers()
    assert first != second
    assert min(each.at for each in pair.writes() if each.agent == second) - killed_at <= TAKEN_OVER_S


@pytest.mark.timeout(900)
def test_a_leader_that_hung_for_longer_than_its_lease_writes_nothing_once_it_runs_again(pair: Pair) -> None:
    leader, other = pair.start()
    pair.load.create(SHAPE, 0, 1)
    pair.load.until(lambda: pair.load.count("Job") == 1, within_s=WITHIN_S)
    leader.freeze()
    frozen_at = time.time()
    assert pair.follows(0, 2) <= TAKEN_OVER_S
    time.sleep(max(0.0, FROZEN_S - (time.time() - frozen_at)))
    # It finds edits that it has not seen, and a Lease that it believes to hold.
    pair.load.edit(0, {"rollout": {"replicas": 3}})
    leader.thaw()
    leader.until(lambda: total(leader.series(), "rljob_operator_leader") == 0, within_s=WITHIN_S)
    assert pair.follows(0, 4) <= WITHIN_S
    assert len(pair.writers()) == 2, "one writer after the other"
    assert total(other.series(), "rljob_operator_leader") == 1


@pytest.mark.timeout(900)
def test_a_leader_that_is_asked_to_end_hands_over_at_once(pair: Pair) -> None:
    leader, _ = pair.start()
    pair.load.create(SHAPE, 0, 1)
    pair.load.until(lambda: pair.load.count("Job") == 1, within_s=WITHIN_S)
    leader.stop()
    assert pair.follows(0, 2) <= HANDED_OVER_S
    assert len(pair.writers()) == 2


@pytest.mark.timeout(900)
def test_jobs_that_run_do_not_notice_that_another_operator_leads(pair: Pair, stand_in: tuple[StandIn, str]) -> None:
    leader, _ = pair.start()
    stand_in[0].says(enums.Phase.RUNNING, step=1)
    pair.load.create(SHAPE, 0, 2)
    pair.load.until(lambda: pair.load.count("Pod") == 2 * SHAPE.pods, within_s=WITHIN_S)
    before = {pod["metadata"]["uid"] for pod in pair.load.pods()}
    leader.stop()
    pair.follows(0, 2)
    pair.load.until(lambda: pair.load.count("Pod") == 2 * SHAPE.pods + 1, within_s=WITHIN_S)
    assert before <= {pod["metadata"]["uid"] for pod in pair.load.pods()}
