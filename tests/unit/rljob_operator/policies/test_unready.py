import dataclasses

import pytest

from rljob_api import enums, types
from rljob_operator.model import Observed, Pod, Report
from rljob_operator.policies import deadlines
from rljob_testing.operator_runs import operator_job

NOW = 2000.0
READY = [
    Pod(name="job-coordinator-0", uid="c", role=enums.Role.COORDINATOR, phase="Running", ready=True),
    Pod(name="job-rollout-1", uid="r", role=enums.Role.ROLLOUT, phase="Running", ready=True),
    Pod(name="job-verifier-1", uid="v", role=enums.Role.VERIFIER, phase="Running", ready=True),
    Pod(name="job-trainer-1-0-x", uid="t", role=enums.Role.TRAINER, phase="Running", ready=True),
]


def waited_for(pods: list[Pod], *, said: types.RunStatus | None = None) -> str:
    report = None if said is None else Report(run=said, read_at=NOW)
    return deadlines.waited_for(Observed(job=operator_job(), pods=tuple(pods), report=report), now=NOW)


@pytest.mark.parametrize("which", range(4))
def test_pod_that_was_not_ready_is_named(which: int) -> None:
    pods = [dataclasses.replace(pod, ready=index != which) for index, pod in enumerate(READY)]
    assert waited_for(pods) == f"not ready: {READY[which].name}"


def test_what_a_pod_waits_for_stands_beside_its_name() -> None:
    crashing = dataclasses.replace(READY[1], ready=False, waiting_reason="CrashLoopBackOff")
    assert waited_for([READY[0], crashing, *READY[2:]]) == "not ready: job-rollout-1 (CrashLoopBackOff)"


def test_pod_without_a_node_comes_before_those_that_only_start() -> None:
    unplaced = dataclasses.replace(
        READY[3],
        ready=False,
        phase="Pending",
        conditions=frozenset({("PodScheduled", "False")}),
        unscheduled="Unschedulable",
        message='persistentvolumeclaim "data" not found',
    )
    starting = dataclasses.replace(READY[1], ready=False)
    said = waited_for([READY[0], starting, READY[2], unplaced])
    assert said == (
        'Unschedulable: job-trainer-1-0-x: persistentvolumeclaim "data" not found; not ready: job-rollout-1'
    )


def test_pod_without_a_node_hides_none_that_crashes() -> None:
    unplaced = dataclasses.replace(
        READY[2], ready=False, phase="Pending", conditions=frozenset({("PodScheduled", "False")})
    )
    crashing = dataclasses.replace(READY[1], ready=False, waiting_reason="CrashLoopBackOff")
    said = waited_for([READY[0], crashing, unplaced, READY[3]])
    assert said == "Unschedulable: job-verifier-1: has no node; not ready: job-rollout-1 (CrashLoopBackOff)"


def test_role_whose_last_pod_has_ended_has_none() -> None:
    ended = dataclasses.replace(READY[3], ready=False, phase="Failed")
    assert waited_for([*READY[:3], ended]) == "not ready: trainer, which has no pod"


def test_hundred_pods_are_counted_and_five_are_named() -> None:
    rollouts = [dataclasses.replace(READY[1], name=f"job-rollout-{index:03}", ready=False) for index in range(100)]
    said = waited_for([READY[0], *rollouts, *READY[2:]])
    assert said.endswith("job-rollout-004 and 95 more")
    assert said.count("job-rollout") == 5


def test_run_whose_pods_were_all_ready_waited_for_none_of_them() -> None:
    assert waited_for(READY) == "every pod was ready"


def test_run_whose_pods_were_all_ready_waited_for_what_its_coordinator_says() -> None:
    waits = types.Waiting(role="trainer", pod="job-trainer-1-0", what="batch 1", on_role="rollout", since=0.0)
    said = types.RunStatus(job="job", phase=enums.Phase.EVALUATING, evaluating="step 0: 3/64", waiting=(waits,))
    assert waited_for(READY, said=said) == (
        "every pod was ready; the coordinator says Evaluating (step 0: 3/64); job-trainer-1-0 waits for batch 1"
    )
