"""Two operators as processes on a real API server: one leads. It is killed, stopped where it is, and asked to end.

Who wrote what, and when, is the API server's own audit log, in which each process has a name of its own.
"""

import itertools
import os
import pathlib
import time
import zlib
from collections.abc import Iterator

import pytest

from rljob_api import enums
from rljob_operator.kube import kinds
from rljob_testing import operator_nodes
from rljob_testing.operator_installation import Installed
from rljob_testing.operator_load import Shape, StandIn, standing_in
from rljob_testing.operator_pair import WITHIN_S, OperatorPair
from rljob_testing.operator_series import total

# Lease and retry, and what an API server and a pass take.
TAKEN_OVER_S = 15.0
# Longer than a lease and a retry.
FROZEN_S = 14.0
NUM_JOBS = 12
# Ten minutes and 200 jobs by hand: RLJOB_KILLS=30 pytest -s tests/cluster/operator/test_leaders.py -k again_and_again
NUM_KILLS = int(os.environ.get("RLJOB_KILLS", "2"))
NUM_UNDER_LOAD, KILLED_EVERY_S = 200 if "RLJOB_KILLS" in os.environ else NUM_JOBS, 20.0
SHAPE = Shape(minimal=True)


@pytest.fixture
def stand_in() -> Iterator[tuple[StandIn, str]]:
    with standing_in() as both:
        yield both


@pytest.fixture
def pair(
    installed: Installed, stand_in: tuple[StandIn, str], tmp_path: pathlib.Path, request: pytest.FixtureRequest
) -> Iterator[OperatorPair]:
    namespace = f"leaders-{zlib.crc32(request.node.name.encode())}"
    both = OperatorPair(installed, tmp_path, namespace, stand_in[1])
    try:
        yield both
    finally:
        both.end()


def _made_once(pair: OperatorPair, num_jobs: int) -> None:
    """See that every job has all of its children, and that no object was made twice."""
    pair.load.until(lambda: pair.load.count("Job") == num_jobs, within_s=WITHIN_S)
    made = [(each.resource, each.name) for each in pair.writes() if each.status == 201 and each.resource != "events"]
    assert sorted(made) == sorted(set(made))
    # Counted where they are: an object is there before the log has its request, and of a sender that was killed the log
    # may have no answer.
    names = sorted(each["name"] for each in pair.load.metadata(kinds.BY_NAME["Job"]))
    assert names == sorted(f"job-{number}-trainer-1" for number in range(num_jobs))


@pytest.mark.timeout(900)
def test_a_leader_that_is_killed_among_starts_is_followed_in_time_and_nothing_is_made_twice(pair: OperatorPair) -> None:
    leader, _ = pair.start()
    pair.load.create(SHAPE, 0, NUM_JOBS)
    pair.load.until(lambda: pair.load.count("Job") > 0, within_s=WITHIN_S)
    leader.kill()
    killed_at, before = time.time(), len(pair.writers())
    assert before == 1, "the other one wrote nothing"
    # A leader that was fast has made all of the others by now.
    pair.load.create(SHAPE, NUM_JOBS, NUM_JOBS + 1)
    _made_once(pair, NUM_JOBS + 1)
    first, second = pair.writers()
    assert first != second
    assert min(each.at for each in pair.writes() if each.agent == second) - killed_at <= TAKEN_OVER_S


@pytest.mark.timeout(900)
def test_a_leader_that_hung_for_longer_than_its_lease_writes_nothing_once_it_runs_again(pair: OperatorPair) -> None:
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
def test_a_leader_that_is_asked_to_end_hands_over_at_once(pair: OperatorPair) -> None:
    leader, other = pair.start()
    pair.load.create(SHAPE, 0, 1)
    pair.load.until(lambda: pair.load.count("Job") == 1, within_s=WITHIN_S)
    leader.stop()
    assert pair.holder() in {"", other.identity}, "it gave the Lease back before it ended"
    pair.follows(0, 2)
    assert len(pair.writers()) == 2


@pytest.mark.timeout(900)
def test_jobs_that_run_do_not_notice_that_another_operator_leads(
    pair: OperatorPair, stand_in: tuple[StandIn, str]
) -> None:
    leader, _ = pair.start()
    stand_in[0].says(enums.Phase.RUNNING, step=1)
    pair.load.create(SHAPE, 0, 2)
    pair.load.until(lambda: pair.load.count("Pod") == 2 * SHAPE.pods, within_s=WITHIN_S)
    before = {pod["metadata"]["uid"] for pod in pair.load.pods()}
    leader.stop()
    pair.follows(0, 2)
    pair.load.until(lambda: pair.load.count("Pod") == 2 * SHAPE.pods + 1, within_s=WITHIN_S)
    assert before <= {pod["metadata"]["uid"] for pod in pair.load.pods()}


def _orphans(pair: OperatorPair, num_jobs: int) -> list[str]:
    """Return the children of jobs that are not there."""
    uids = {each["uid"] for each in pair.load.metadata(kinds.RLJOB)}
    assert len(uids) == num_jobs
    return [
        each["name"]
        for kind in kinds.CHILDREN
        for each in pair.load.metadata(kind, selector=kinds.MANAGED)
        if not {owner["uid"] for owner in each.get("ownerReferences", ())} & uids
    ]


@pytest.mark.timeout(3600)
def test_leaders_that_are_killed_again_and_again_under_load_disturb_no_run(
    pair: OperatorPair, installed: Installed, stand_in: tuple[StandIn, str]
) -> None:
    leader, other = pair.start()
    stand_in[0].says(enums.Phase.RUNNING, step=1)
    half, taken_s, numbers = NUM_UNDER_LOAD // 2, list[float](), itertools.count()
    with operator_nodes.played(installed.cluster):
        pair.load.create(SHAPE, 0, half)
        pair.load.until(lambda: pair.load.count("Pod") == half * SHAPE.pods, within_s=600.0)
        before = {pod["metadata"]["uid"] for pod in pair.load.pods()}
        pair.load.until(lambda: len(pair.running_since()) == half, within_s=600.0)
        running, created = pair.running_since(), half
        for kill in range(NUM_KILLS):
            created_by = half + (NUM_UNDER_LOAD - half) * (kill + 1) // NUM_KILLS
            pair.load.create(SHAPE, created, created_by)
            created, killed_at = created_by, time.time()
            leader.kill()
            # There is always something to do.
            while (written_at := pair.first_write(killed_at, not_of=leader.identity)) is None:
                number = next(numbers)
                pair.load.edit(number % half, {"maxSteps": 100 + number})
                assert time.time() - killed_at < WITHIN_S
                time.sleep(0.2)
            taken_s.append(written_at - killed_at)
            leader.start()
            leader.ready()
            leader, other = other, leader
            time.sleep(max(0.0, KILLED_EVERY_S - (time.time() - killed_at)))
        _made_once(pair, NUM_UNDER_LOAD)
        pair.load.until(lambda: pair.load.count("Pod") == NUM_UNDER_LOAD * SHAPE.pods, within_s=600.0)
        assert before <= {pod["metadata"]["uid"] for pod in pair.load.pods()}, "healthy runs keep their pods"
        assert running.items() <= pair.running_since().items(), "they run all the time"
    assert _orphans(pair, NUM_UNDER_LOAD) == []
    ranked = sorted(taken_s)
    print(
        f"\n{NUM_KILLS} kills, {NUM_UNDER_LOAD} jobs, taken over after", *(f"{seconds:.1f}" for seconds in ranked), "s"
    )
    assert ranked[-1] <= TAKEN_OVER_S
