"""What agents change of a job: why it may not begin, its status, and the order in which it stops."""

import dataclasses

from rljob_api import enums
from rljob_operator.model import Observed, Pod, ref_of
from rljob_operator.policies import failure
from rljob_operator.reconcile import conditions
from rljob_operator.reconcile.desired import desired_objects
from rljob_operator.reconcile.suspend import PodsLeft, SuspendStage, stage
from rljob_operator.settings import JobSettings
from rljob_testing.operator_runs import Run, operator_job

SETTINGS = JobSettings(images={role: f"example/{role}:1" for role in enums.STANDARD_ROLES})
A, V = enums.Role.AGENTS, enums.Role.VERIFIER
KEY = {"name": "RLJOB_GATEWAY_KEY", "valueFrom": {"secretKeyRef": {"name": "gateway", "key": "token"}}}


def with_agents(*, env: list[object] | None = None, pod: dict[str, object] | None = None) -> dict[str, object]:
    return {
        "workflow": {"type": "external"},
        "rollout": {"gateway": {}, "pod": {"env": [KEY] if env is None else env}},
        "agents": {"replicas": 2, "pod": {"image": "example/agent:2"} if pod is None else pod},
    }


def test_agents_have_the_image_that_the_manifest_names_and_the_installation_has_none() -> None:
    made = desired_objects(Observed(job=operator_job(with_agents())), SETTINGS)
    assert made.problems == ()
    (deployment,) = (each for each in made.workloads(1) if ref_of(each).name == "job-agents")
    assert "example/agent:2" in str(deployment)
    (problem,) = desired_objects(Observed(job=operator_job(with_agents(pod={}))), SETTINGS).problems
    assert problem == "no image for agents pods: set spec.agents.pod.image"


def test_a_key_of_the_gateway_that_is_in_no_secret_is_refused_by_name() -> None:
    open_key = {"name": "RLJOB_GATEWAY_KEY", "value": "an open key of the gateway"}
    for env in ([], [open_key]):
        (problem,) = desired_objects(Observed(job=operator_job(with_agents(env=env))), SETTINGS).problems
        assert "spec.rollout.pod.env" in problem
        assert "RLJOB_GATEWAY_KEY from a Secret" in problem


def test_agents_are_counted_in_the_status_as_verifiers_are() -> None:
    run = Run(operator_job(with_agents()))
    run.settle()
    assert run.cluster.job is not None
    assert run.cluster.job.status is not None
    rows = {row.name: (row.desired, row.ready) for row in run.cluster.job.status.roles}
    assert rows["agents"] == (2, 0)
    run.cluster.pods["job-agents-0"] = Pod(name="job-agents-0", uid="a", role=A, phase="Running", ready=True)
    run.reconcile()
    rows = {row.name: (row.desired, row.ready) for row in run.cluster.job.status.roles}
    assert rows["agents"] == (2, 1)


def test_a_job_with_too_few_agents_is_degraded() -> None:
    wanted = {A: 2, V: 1}
    assert conditions.degraded_reason(ready={A: 1, V: 1}, desired=wanted, run_reason="") == "AgentsBelowTarget"
    assert conditions.degraded_reason(ready={A: 2, V: 1}, desired=wanted, run_reason="") == ""


def test_agents_stop_once_no_rollout_needs_them() -> None:
    with_rollout = PodsLeft(trainer=0, rollout=1, verifier=0, coordinator=1, agents=2)
    assert stage(with_rollout) == SuspendStage.TRAINER_AND_ROLLOUTS
    assert stage(dataclasses.replace(with_rollout, rollout=0)) == SuspendStage.VERIFIERS
    assert stage(dataclasses.replace(with_rollout, rollout=0, agents=0)) == SuspendStage.COORDINATOR


def test_an_exit_code_of_agents_says_nothing_of_the_job() -> None:
    looping = Pod(name="p", uid="u", role=A, phase="Running", waiting_reason=failure.CRASH_LOOP, last_exit_code=78)
    assert failure.misconfigured([looping]) is None
    assert failure.misconfigured([dataclasses.replace(looping, role=V)]) is not None
