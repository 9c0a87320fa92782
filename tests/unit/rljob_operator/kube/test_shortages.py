"""Pods that the API server denies to the controllers that make them: a quota, a limit range, an admission policy."""

import asyncio

import pytest

from rljob_api import enums
from rljob_operator.kube import projection
from rljob_operator.model import Child, Pod, Ref
from rljob_operator.reconcile.shortages import Shortages
from rljob_testing.clock import FakeClock
from rljob_testing.operator_runs import Run, operator_job

C, R, V, T = enums.Role.COORDINATOR, enums.Role.ROLLOUT, enums.Role.VERIFIER, enums.Role.TRAINER
QUOTA = 'pods "x" is forbidden: exceeded quota: team, requested: requests.cpu=250m, used: requests.cpu=8, limited: 8'


def condition(run: Run, kind: str) -> tuple[str, str, str]:
    assert run.cluster.job is not None
    assert run.cluster.job.status is not None
    found = run.cluster.job.status.conditions
    return next((one.status, one.reason, one.message) for one in found if one.type == kind)


def passes(run: Run, seconds: float, *, every_s: float = 10.0) -> None:
    """Let time pass in passes of so many seconds."""
    for _ in range(int(seconds // every_s)):
        run.reconcile()
        run.cluster.settle()
        run.clock.tick(every_s)


@pytest.mark.parametrize(
    "denied", [tuple(enums.STANDARD_ROLES), (C, R, T), (C,), (T,), (V,)], ids=lambda roles: "+".join(map(str, roles))
)
def test_denied_pods_are_named_with_their_controllers_words_and_never_count_as_starting(
    denied: tuple[enums.Role, ...],
) -> None:
    run = Run(operator_job())
    run.cluster.denied = dict.fromkeys(denied, QUOTA)
    passes(run, 120.0)
    first = "Deployment job-rollout" if R in denied else "Deployment job-verifier" if V in denied else None
    named = first or ("StatefulSet job-coordinator" if C in denied else "Job job-trainer-1")
    assert condition(run, "PodsScheduled") == ("False", "CreateFailed", f"{named}: {QUOTA}")
    passes(run, 24 * 3600.0, every_s=600.0)
    assert condition(run, "PodsScheduled")[:2] == ("False", "CreateFailed")
    assert (condition(run, "Failed")[0], run.summary) == ("False", "Starting")
    run.cluster.denied = {}
    passes(run, 60.0)
    run.cluster.says(enums.Phase.RUNNING, step=1)
    run.settle()
    assert condition(run, "PodsScheduled")[:2] == ("True", "Scheduled")
    assert run.summary == "Running"


def test_controller_that_says_nothing_for_a_minute_is_named_with_what_is_missing() -> None:
    run = Run(operator_job())
    run.cluster.denied = {T: ""}
    passes(run, 50.0)
    assert condition(run, "PodsScheduled")[:2] == ("False", "Pending")
    passes(run, 30.0)
    assert condition(run, "PodsScheduled") == (
        "False",
        "CreateFailed",
        "Job job-trainer-1: 0 of 2 pods exist and its controller does not report why: see its Events",
    )


def test_job_without_a_pod_is_never_called_scheduled() -> None:
    run = Run(operator_job())
    run.reconcile()
    assert condition(run, "PodsScheduled")[:2] == ("False", "Pending")
    run.settle()
    assert condition(run, "PodsScheduled")[0] == "True"
    run.cluster.edit(suspend=True)
    run.settle()
    assert condition(run, "PodsScheduled")[:2] == ("False", "Suspended")
    run.cluster.edit(suspend=False)
    run.settle()
    run.cluster.says(enums.Phase.RUNNING, step=2)
    run.cluster.end_trainer(0)
    run.cluster.says(enums.Phase.FINISHED, step=10)
    run.settle()
    assert condition(run, "PodsScheduled")[:2] == ("False", "Finished")


def test_limit_of_waiting_for_nodes_holds_for_pods_that_are_not_made() -> None:
    run = Run(operator_job({"schedulingDeadlineSeconds": 600}))
    run.cluster.denied = dict.fromkeys(enums.STANDARD_ROLES, QUOTA)
    passes(run, 700.0)
    assert condition(run, "Failed")[1] == "SchedulingDeadlineExceeded"
    assert QUOTA in condition(run, "Failed")[2]


def test_pod_that_is_made_again_in_a_moment_is_no_news() -> None:
    run = Run(operator_job())
    run.settle()
    run.cluster.says(enums.Phase.RUNNING, step=1)
    run.settle()
    before = len(run.cluster.statuses)
    del run.cluster.pods["job-rollout-1"]
    run.reconcile()
    assert condition(run, "PodsScheduled")[0] == "True"
    run.settle()
    assert len(run.cluster.statuses) <= before + 2, "the rollout's count went down and up"


def test_words_of_a_deployment_are_read_from_its_condition() -> None:
    labels = {"rljob.dev/role": "rollout", "rljob.dev/job": "job"}
    raw = {
        "kind": "Deployment",
        "metadata": {"name": "d", "uid": "u", "labels": labels},
        "spec": {"replicas": 2},
        "status": {
            "conditions": [
                {"type": "Available", "status": "False", "reason": "MinimumReplicasUnavailable"},
                {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": QUOTA},
            ]
        },
    }
    assert projection.project_child(raw).child().denied == QUOTA
    raw["status"] = {"conditions": [{"type": "ReplicaFailure", "status": "False"}]}
    assert projection.project_child(raw).child().denied == ""


class Asked:
    """Counts how often Events are read. A fake."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.clock = FakeClock()
        self.shortages = Shortages(now=self.clock.now)

    def look(self, child: Child, *pods: Pod, after_s: float = 0.0) -> str | None:
        self.clock.tick(after_s)
        found = asyncio.run(self.shortages.look("job", [child], pods, self._failures))
        return found[child.ref].message if child.ref in found else None

    async def _failures(self, child: Child) -> str:
        self.times.append(self.clock.now())
        return QUOTA if len(self.times) == 1 else ""


def workload(kind: str, **spec: int) -> Child:
    attempt = 1 if kind == "Job" else 0
    return Child(ref=Ref(kind, "c"), uid="c", manifest={"spec": spec}, role=T if attempt else C, attempt=attempt)


@pytest.mark.parametrize("child", [workload("StatefulSet", replicas=1), workload("Job", completions=1)])
def test_events_are_read_where_nothing_else_tells_and_less_and_less_often(child: Child) -> None:
    asked = Asked()
    assert asked.look(child) == ""
    assert asked.times == [], "it is just being made"
    assert asked.look(child, after_s=5.0) == QUOTA
    for _ in range(720):
        assert asked.look(child, after_s=5.0) == QUOTA, "an Event that went does not take the reason along"
    assert len(asked.times) < 20, "in an hour"
    assert asked.look(child, Pod(name="p", uid="p", role=child.role or C, attempt=child.attempt)) is None
    assert asked.look(child, after_s=60.0) == "", "another shortage, another reason"


def test_workload_that_is_set_to_nothing_lacks_nothing() -> None:
    asked = Asked()
    assert asked.look(workload("StatefulSet", replicas=0), after_s=99.0) is None


def test_pods_of_an_ended_job_are_not_missed() -> None:
    asked = Asked()
    assert asked.look(Child(ref=Ref("Job", "c"), uid="c", manifest={"spec": {"completions": 1}}, role=T, attempt=1,
                            ended="Complete")) is None  # fmt: skip
