"""A node that stops answering while its Node object stays: its pods are Terminating for ever, and hold nothing up."""

import dataclasses
from collections.abc import Callable

import pytest

from rljob_api import enums
from rljob_api.manifest.status import AttemptStatus, JobStatus
from rljob_operator.kube import projection
from rljob_operator.model import Pod
from rljob_operator.policies import failure
from rljob_testing.fake_cluster import DRAIN_S
from rljob_testing.operator_runs import Run, operator_job

C, R, V, T = enums.Role.COORDINATOR, enums.Role.ROLLOUT, enums.Role.VERIFIER, enums.Role.TRAINER
UNREADY = frozenset({("Ready", "False"), ("ContainersReady", "False"), ("DisruptionTarget", "True")})
GOES = Pod(name="p", uid="u", role=T, phase="Running", deleting=True, deleted_at=1000.0)
CUT_OFF = dataclasses.replace(
    GOES,
    deleted_at=1615.0,
    disruption="DeletionByTaintManager",
    disrupted_at=1000.0,
    conditions=frozenset({("Ready", "False"), ("ContainersReady", "True"), ("DisruptionTarget", "True")}),
)


@pytest.mark.parametrize(
    ("pod", "lost_at"),
    [
        (dataclasses.replace(GOES, deleting=False), None),
        (dataclasses.replace(GOES, phase="Failed"), None),
        (GOES, 1060.0),
        (CUT_OFF, 1060.0),
        (dataclasses.replace(CUT_OFF, disruption="EvictionByEvictionAPI"), 1675.0),
        (dataclasses.replace(CUT_OFF, conditions=frozenset({("Ready", "True"), ("ContainersReady", "True")})), 1675.0),
        (dataclasses.replace(CUT_OFF, conditions=UNREADY, unready_at=400.0), 1060.0),
        (
            dataclasses.replace(CUT_OFF, conditions=UNREADY, unready_at=400.0, disruption="EvictionByEvictionAPI"),
            1675.0,
        ),
        (dataclasses.replace(CUT_OFF, conditions=UNREADY, unready_at=990.0), 1675.0),
        (dataclasses.replace(CUT_OFF, conditions=UNREADY, unready_at=1001.0), 1675.0),
    ],
    ids=[
        "runs",
        "has ended",
        "overdue",
        "its node is silent",
        "drained",
        "tainted, and it answers",
        "it loaded",
        "it loaded and is drained",
        "unready a moment before",
        "it stops serving as it goes",
    ],
)
def test_pod_is_given_up_a_minute_after_its_time_or_after_its_node_was_found_silent(
    pod: Pod, lost_at: float | None
) -> None:
    assert failure.lost_at(pod) == lost_at
    if lost_at is not None:
        assert [failure.is_lost(pod, now=lost_at + s) for s in (-0.1, 0.0)] == [False, True]
        assert [one.grace_s for one in failure.forced_deletions([pod], now=lost_at)] == [0]
        assert failure.forced_deletions([dataclasses.replace(pod, forced=True)], now=lost_at) == (), "once is enough"


def test_marks_of_a_pod_on_a_silent_node_are_read_as_the_node_controller_leaves_them() -> None:
    labels = {"rljob.dev/uid": "u", "rljob.dev/role": "trainer", "rljob.dev/job": "job", "rljob.dev/attempt": "1"}
    metadata = {
        "name": "p", "uid": "p", "labels": labels, "ownerReferences": [{"uid": "o", "controller": True}],
        "deletionTimestamp": "1970-01-01T00:26:55Z", "deletionGracePeriodSeconds": 615,
    }  # fmt: skip
    said = [
        {"type": "Ready", "status": "False", "lastTransitionTime": "1970-01-01T00:10:00Z"},
        {"type": "ContainersReady", "status": "True", "lastTransitionTime": "1970-01-01T00:01:00Z"},
        {
            "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
            "lastTransitionTime": "1970-01-01T00:16:40Z",
        },
    ]  # fmt: skip
    status = {"phase": "Running", "conditions": said}
    kept = projection.project_pod({"metadata": metadata, "status": status})
    assert kept is not None
    assert (kept.pod.deleted_at, kept.pod.disrupted_at, kept.pod.forced) == (1615.0, 1000.0, False)
    assert (kept.pod.unready_at, kept.pod.ready_at) == (600.0, 0.0)
    assert failure.lost_at(kept.pod) == 1060.0
    forced = {**metadata, "deletionGracePeriodSeconds": 0}
    kept = projection.project_pod({"metadata": forced, "status": status})
    assert kept is not None
    assert kept.pod.forced


def running(**failure_policy: object) -> Run:
    run = Run(operator_job({"failurePolicy": failure_policy}))
    run.settle()
    run.cluster.says(enums.Phase.RUNNING, step=3, checkpoint_step=2)
    run.settle()
    return run


def passes(run: Run, until: Callable[[], bool], *, most_s: float = 24 * 3600.0) -> float:
    """Let time pass by five seconds until something holds; return the seconds that it took."""
    began = run.clock.now()
    while not until():
        assert run.clock.now() - began < most_s, run.summary
        run.clock.tick(5.0)
        run.reconcile()
        run.cluster.settle()
    return run.clock.now() - began


def status(run: Run) -> JobStatus:
    assert run.cluster.job is not None
    assert run.cluster.job.status is not None
    return run.cluster.job.status


def ended(run: Run) -> AttemptStatus:
    trainer = status(run).trainer
    assert trainer is not None
    return trainer.attempts[0]


@pytest.mark.parametrize("action", ["Condition", "Restart"])
def test_next_attempt_begins_by_itself_when_a_ranks_node_is_silent(action: str) -> None:
    run = running(stall={"timeoutSeconds": 600, "action": action})
    others = {name: pod.uid for name, pod in run.cluster.pods.items() if pod.role is not T}
    run.cluster.lose_node("job-trainer-1-0")
    took_s = passes(run, lambda: run.alive(T) == ["job-trainer-2-0", "job-trainer-2-1"])
    assert took_s < 90.0, "not the grace period of a stop, which nobody serves"
    assert (ended(run).outcome, ended(run).class_, ended(run).reason) == ("failed", "infrastructure", "NodeLost")
    assert {name: pod.uid for name, pod in run.cluster.pods.items() if pod.role is not T} == others
    assert [name for name in run.cluster.pods if name.startswith("job-trainer-1")] == [], "the Job's finalizer is free"


def test_rules_of_the_failure_policy_hold_for_a_lost_node() -> None:
    lost = {"action": "FailJob", "podConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    run = running(rules=[lost])
    run.cluster.lose_node("job-trainer-1-0")
    passes(run, lambda: run.summary == "Failed", most_s=120.0)
    assert run.cluster.jobs_made == ["job-trainer-1"]


def test_coordinator_on_a_silent_node_is_made_again_elsewhere() -> None:
    run = running()
    before = run.cluster.pods["job-coordinator-0"].uid
    trainers = [run.cluster.pods[name].uid for name in run.alive(T)]
    run.cluster.lose_node("job-coordinator-0", grace_s=45.0)
    passes(run, lambda: run.alive(C) == ["job-coordinator-0"] and run.cluster.pods["job-coordinator-0"].uid != before)
    assert [run.cluster.pods[name].uid for name in run.alive(T)] == trainers


def test_pod_that_stops_in_its_own_time_is_not_hurried() -> None:
    run = running()
    pod = run.cluster.pods["job-trainer-1-0"]
    saves = {"deleting": True, "deleted_at": run.clock.now() + 615.0, "disruption": "EvictionByEvictionAPI"}
    run.cluster.pods[pod.name] = dataclasses.replace(pod, **saves)  # type: ignore[arg-type]  # names fit
    before = list(run.cluster.calls)
    for _ in range(12):
        run.clock.tick(50.0)
        run.cluster.answers()
        run.reconcile()
    assert [call for call in run.cluster.calls[len(before) :] if call != "status"] == []


@pytest.mark.parametrize("name", ["job-trainer-1-0", "job-rollout-0", "job-verifier-0", "job-coordinator-0"])
def test_suspend_ends_and_resume_is_honoured_whosever_node_is_silent(name: str) -> None:
    run = running()
    run.cluster.edit(suspend=True)
    run.reconcile()
    run.cluster.lose_node(name, grace_s=60.0)
    passes(run, lambda: run.summary == "Suspended", most_s=600.0)
    assert run.cluster.pods == {}
    run.cluster.edit(suspend=False)
    passes(run, lambda: run.alive(T) == ["job-trainer-2-0", "job-trainer-2-1"], most_s=60.0)


def test_object_that_another_hands_finalizer_holds_does_not_hold_up_a_suspend() -> None:
    run = running()
    run.cluster.lose_node("job-rollout-1", grace_s=60.0)
    stuck = run.cluster.pods["job-rollout-1"]
    run.cluster.edit(suspend=True)

    def is_suspended() -> bool:
        run.cluster.pods["job-rollout-1"] = dataclasses.replace(stuck, forced=True)
        return run.summary == "Suspended"

    passes(run, is_suspended, most_s=600.0)


def test_finished_run_is_cleaned_up_whosever_node_is_silent() -> None:
    run = running()
    run.cluster.lose_node("job-rollout-0", grace_s=60.0)
    run.cluster.end_trainer(0)
    run.cluster.says(enums.Phase.FINISHED, step=10)
    passes(run, lambda: run.summary == "Succeeded" and not run.alive(R), most_s=60.0 + DRAIN_S)
    passes(run, lambda: "job-rollout-0" not in run.cluster.pods, most_s=180.0)
