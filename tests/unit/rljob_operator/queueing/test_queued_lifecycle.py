"""Lives of a job with a queue: plan and reconciler are real, the cluster is one in memory, Kueue is a stand-in."""

import pytest

from rljob_api import enums
from rljob_api.conditions import ConditionType as Type
from rljob_operator.model import Ref
from rljob_operator.queueing import admission
from rljob_operator.reconcile import conditions
from rljob_testing import stand_in_queue
from rljob_testing.queues import QueuedRun, queued_job

R, T = enums.Role.ROLLOUT, enums.Role.TRAINER


def state(run: QueuedRun, kind: Type) -> tuple[str, str]:
    status = run.cluster.statuses[-1]
    return conditions.statuses(status.conditions).get(kind, ""), conditions.reasons(status.conditions).get(kind, "")


def message(run: QueuedRun, kind: Type) -> str:
    return next(each.message for each in run.cluster.statuses[-1].conditions if each.type == kind)


def admit(run: QueuedRun, **counts: int) -> None:
    run.cluster.queue_says(stand_in_queue.admitted, counts=counts)
    run.settle()


def running(run: QueuedRun | None = None) -> QueuedRun:
    run = run or QueuedRun()
    run.settle()
    admit(run)
    run.cluster.says(enums.Phase.RUNNING, step=1)
    run.settle()
    assert state(run, Type.RUNNING) == ("True", "Running")
    return run


def test_a_queued_job_has_a_workload_and_no_pod() -> None:
    run = QueuedRun()
    run.settle()
    assert len(run.cluster.workloads) == 1
    assert run.cluster.pods == {}
    assert state(run, Type.QUOTA_RESERVED) == ("False", "WaitingForQuota")
    assert state(run, Type.SUSPENDED) == ("True", "WaitingForQuota")
    assert run.summary == "Queued"


def test_what_the_queue_says_is_what_the_condition_says() -> None:
    run = QueuedRun()
    run.settle()
    run.cluster.queue_says(
        stand_in_queue.pending, message="insufficient unused quota for cpu in flavor spot, 3 more needed"
    )
    run.settle()
    expected = "waits for quota in queue research: insufficient unused quota"
    for kind in (Type.QUOTA_RESERVED, Type.SUSPENDED):
        assert message(run, kind).startswith(expected)


def test_an_admitted_job_runs_and_says_when_its_pods_are_ready() -> None:
    run = running()
    assert state(run, Type.QUOTA_RESERVED) == ("True", "Admitted")
    (child,) = run.cluster.workloads
    ready = admission.condition(child, "PodsReady")
    assert ready is not None
    assert (ready["status"], ready["reason"]) == ("True", "Started")


def test_a_job_at_rest_in_its_queue_causes_no_call() -> None:
    run = running()
    before = len(run.cluster.calls)
    for _ in range(5):
        run.cluster.answers()
        run.settle()
    assert run.cluster.calls[before:] == []


def test_rollouts_are_no_more_than_were_admitted() -> None:
    run = QueuedRun(queued_job(rollout={"replicas": 4, "autoscaling": {"minReplicas": 1, "maxReplicas": 8}}))
    run.settle()
    admit(run, rollout=3)
    assert run.cluster.spec_of(Ref("Deployment", "job-rollout"))["replicas"] == 3
    assert len(run.alive(R)) == 3


@pytest.mark.parametrize(
    ("word", "suspending", "requeued"),
    [("Preempted", "Preempted", "True"), ("ClusterQueueStopped", "QuotaEvicted", "False")],
)
def test_an_evicted_job_stops_in_order_and_returns_its_quota_after_the_last_pod(
    word: str, suspending: str, requeued: str
) -> None:
    run = running()
    run.cluster.queue_says(stand_in_queue.evicted, reason=word)
    run.reconcile()
    assert state(run, Type.SUSPENDING) == ("True", suspending)
    for _ in range(200):
        run.reconcile()
        assert run.cluster.holds_quota or not run.cluster.pods, "quota was returned before the last pod had gone"
        run.cluster.settle()
        run.clock.tick(0.5)
        if not run.cluster.holds_quota:
            break
    assert not run.cluster.holds_quota
    (child,) = run.cluster.workloads
    again = admission.condition(child, "Requeued")
    assert again is not None
    assert (again["status"], again["reason"]) == (requeued, word)
    run.settle()
    assert run.summary == "Queued"


def test_preemptions_free_the_quota_within_a_minute_each_and_count_nowhere() -> None:
    run = running()
    for number in range(2, 8):
        run.cluster.queue_says(stand_in_queue.evicted)
        began = run.clock.now()
        while run.cluster.holds_quota:
            run.reconcile()
            run.cluster.settle()
            run.clock.tick(0.5)
            assert run.clock.now() - began < 60.0
        assert run.cluster.pods == {}
        run.settle()
        admit(run)
        run.cluster.says(enums.Phase.RUNNING, step=number)
        run.settle()
        assert state(run, Type.RUNNING) == ("True", "Running")
        assert run.cluster.statuses[-1].attempt == number
    restarts = run.cluster.statuses[-1].restarts
    assert restarts is None or restarts.total == 0


def test_a_workload_that_is_deleted_by_hand_stops_the_run_which_asks_again() -> None:
    run = running()
    (child,) = run.cluster.workloads
    del run.cluster.children[child.ref]
    run.settle()
    assert run.cluster.pods == {}
    assert [each.ref for each in run.cluster.workloads] == [child.ref]
    assert not run.cluster.holds_quota


def test_a_deactivated_workload_is_said_to_be_so() -> None:
    run = running()
    (child,) = run.cluster.workloads
    spec = {**run.cluster.spec_of(child.ref), "active": False}
    run.cluster.change(child.ref, {**child.manifest, "spec": spec})
    run.cluster.queue_says(stand_in_queue.evicted, reason="Deactivated")
    run.settle()
    assert run.cluster.pods == {}
    assert state(run, Type.QUOTA_RESERVED) == ("False", "Deactivated")
    assert state(run, Type.SUSPENDED) == ("True", "Evicted")
    assert not run.cluster.holds_quota


def test_a_job_that_its_user_suspends_leaves_the_queue_and_comes_again() -> None:
    run = running()
    run.cluster.edit(suspend=True)
    run.settle()
    assert run.cluster.workloads == []
    assert state(run, Type.SUSPENDED) == ("True", "UserRequested")
    assert state(run, Type.QUOTA_RESERVED) == ("False", "Suspended")
    run.cluster.edit(suspend=False)
    run.settle()
    assert run.summary == "Queued"
    assert len(run.cluster.workloads) == 1


def test_a_job_that_needs_something_else_while_it_waits_asks_for_that() -> None:
    run = QueuedRun()
    run.settle()
    (before,) = run.cluster.workloads
    job = run.cluster.job
    assert job is not None
    run.cluster.edit(trainer=job.spec.trainer.model_copy(update={"nodes": 4}))
    # The queue is quicker than the operator: what it admits is not what the job needs.
    run.cluster.queue_says(stand_in_queue.admitted)
    run.settle()
    (after,) = run.cluster.workloads
    assert after.ref != before.ref
    assert run.cluster.pods == {}
    assert run.summary == "Queued"


def test_a_run_that_began_without_a_queue_goes_on_when_it_gets_one() -> None:
    run = QueuedRun(queued_job(labels={}))
    run.settle()
    run.cluster.says(enums.Phase.RUNNING, step=1)
    run.settle()
    job = run.cluster.job
    assert job is not None
    labels = queued_job().metadata.labels
    run.cluster.job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"labels": labels})})
    run.settle()
    assert state(run, Type.RUNNING) == ("True", "Running")
    assert run.cluster.workloads == []


@pytest.mark.parametrize("exit_code", [0, 1])
def test_a_run_that_ends_frees_all_its_pods_and_then_its_quota(exit_code: int) -> None:
    keep = {"onSuccess": {"rollout": "Keep", "verifier": "Keep"}, "onFailure": {"rollout": "Keep"}}
    run = running(QueuedRun(queued_job(cleanupPolicy=keep, failurePolicy={"maxTrainerRestarts": 0})))
    phase = enums.Phase.FAILED if exit_code else enums.Phase.FINISHED
    run.cluster.says(phase, step=10, failure="no such file" if exit_code else "")
    run.cluster.end_trainer(exit_code)
    for _ in range(100):
        run.reconcile()
        still = [pod for pod in run.cluster.pods.values() if not pod.is_terminal]
        assert run.cluster.holds_quota or not still
        run.cluster.settle()
        run.clock.tick(0.5)
    assert not run.cluster.holds_quota
    (child,) = run.cluster.workloads
    finished = admission.condition(child, "Finished")
    assert finished is not None
    assert finished["reason"] == ("Failed" if exit_code else "Succeeded")


def test_a_failed_run_that_is_retried_waits_for_quota_again() -> None:
    run = running(QueuedRun(queued_job(failurePolicy={"maxTrainerRestarts": 0})))
    run.cluster.says(enums.Phase.FAILED, step=10, failure="no such file")
    run.cluster.end_trainer(1)
    run.settle()
    assert state(run, Type.FAILED)[0] == "True"
    (finished,) = run.cluster.workloads
    run.cluster.edit(retry=1)
    run.settle()
    assert state(run, Type.FAILED)[0] == "False"
    assert (run.summary, run.cluster.pods) == ("Queued", {})
    (again,) = run.cluster.workloads
    assert again.uid != finished.uid, "the quota of the finished one was given to others"
    run.cluster.says(enums.Phase.RUNNING, step=11)
    admit(run)
    assert state(run, Type.RUNNING) == ("True", "Running")
    assert run.cluster.statuses[-1].attempt == 2


@pytest.mark.parametrize("point", range(0, 60, 6))
def test_an_operator_that_dies_at_any_call_of_an_eviction_ends_it_all_the_same(point: int) -> None:
    run = running()
    run.cluster.kill_at = frozenset({run.cluster.num_points + point})
    run.cluster.queue_says(stand_in_queue.evicted)
    run.settle()
    assert run.cluster.pods == {}
    assert not run.cluster.holds_quota
    admit(run)
    assert len(run.alive(T)) == 2
