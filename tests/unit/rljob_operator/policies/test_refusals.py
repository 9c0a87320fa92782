"""What the API server, or the installation, refuses of a job: one child is held up, the run is not."""

import dataclasses
from collections.abc import Mapping

import pytest

from rljob_api import enums
from rljob_api.conditions import ConditionType as Type
from rljob_operator.model import Apply, DesiredObjects, Observed, Plan, Ref, Refusal
from rljob_operator.policies import refusals
from rljob_testing.fake_cluster import wanted
from rljob_testing.operator_runs import Run

FORBIDDEN, INVALID = 403, 422
BUDGET, ROLLOUT = Ref("PodDisruptionBudget", "job-budget"), Ref("Deployment", "job-rollout")


def running() -> Run:
    run = Run()
    run.settle()
    run.cluster.says(enums.Phase.RUNNING, step=3, checkpoint_step=2)
    run.settle()
    assert run.summary == "Running"
    return run


def condition(run: Run, kind: Type) -> tuple[str, str, str]:
    assert run.cluster.job is not None
    assert run.cluster.job.status is not None
    found = next(one for one in run.cluster.job.status.conditions if one.type == kind)
    return found.status, found.reason, found.message


def with_budget(seen: Observed) -> DesiredObjects:
    """Want a disruption budget too, as a job has while it runs."""
    manifest: Mapping[str, object] = {
        "kind": BUDGET.kind,
        "metadata": {"name": BUDGET.name, "labels": {"role": "config", "attempt": "0"}},
        "spec": {},
    }
    usual = wanted(seen)
    return dataclasses.replace(usual, workloads=lambda attempt: [*usual.workloads(attempt), manifest])


def pass_time(run: Run, minutes: int) -> None:
    for _ in range(minutes):
        run.clock.tick(60)
        run.cluster.says(enums.Phase.RUNNING, step=3, checkpoint_step=2)
        run.settle()


def test_policy_that_denies_a_change_of_a_workload_does_not_take_the_trainers_next_attempt() -> None:
    run = running()
    run.cluster.refusing[ROLLOUT.name] = INVALID
    run.cluster.edit(rollout=run.cluster.job.spec.rollout.model_copy(update={"replicas": 3}))  # type: ignore[union-attr]  # it is there
    run.settle()
    assert condition(run, Type.CHILDREN_APPLIED) == ("False", "ChildRejected", "Deployment job-rollout: HTTP 422")
    assert condition(run, Type.RUNNING)[0] == "True"
    assert condition(run, Type.ACCEPTED)[0] == "True"
    run.cluster.end_trainer(1)
    run.until(lambda: "job-trainer-2" in run.cluster.jobs_made)
    pass_time(run, 2)
    assert run.summary in ("Running", "Degraded")


def test_denied_child_is_made_without_an_edit_once_the_policy_is_gone() -> None:
    run = running()
    run.cluster.refusing[ROLLOUT.name] = INVALID
    run.cluster.edit(rollout=run.cluster.job.spec.rollout.model_copy(update={"replicas": 3}))  # type: ignore[union-attr]  # it is there
    pass_time(run, 60)
    tries = run.cluster.calls.count(f"refused {ROLLOUT.name}")
    assert 6 <= tries <= 12, "slowly, and for ever"
    del run.cluster.refusing[ROLLOUT.name]
    pass_time(run, 11)
    assert run.cluster.children[ROLLOUT].wanted_replicas == 3
    assert condition(run, Type.CHILDREN_APPLIED) == ("True", "Applied", "")


def test_quota_on_a_budget_does_not_end_a_healthy_run_and_is_forgotten_when_the_budget_is_not_wanted_any_more() -> None:
    run = running()
    run.wanted = with_budget
    run.cluster.refusing[BUDGET.name] = FORBIDDEN
    run.settle()
    assert condition(run, Type.CHILDREN_APPLIED)[:2] == ("False", "Forbidden")
    assert BUDGET.name in condition(run, Type.CHILDREN_APPLIED)[2]
    assert [condition(run, kind)[0] for kind in (Type.ACCEPTED, Type.RUNNING, Type.STALLED)] == [
        "True",
        "True",
        "False",
    ]
    run.wanted = wanted
    run.settle()
    assert condition(run, Type.CHILDREN_APPLIED)[0] == "True"


def test_job_whose_pods_cannot_be_made_is_not_accepted_with_the_servers_words() -> None:
    run = Run()
    run.cluster.refusing["job-coordinator"] = FORBIDDEN
    run.settle()
    assert condition(run, Type.ACCEPTED) == ("False", "Forbidden", "StatefulSet job-coordinator: HTTP 403")
    assert condition(run, Type.STALLED)[0] == "True"
    assert run.alive(enums.Role.ROLLOUT), "the other roles wait for it as they wait for a slow one"
    del run.cluster.refusing["job-coordinator"]
    run.wait(61)
    assert condition(run, Type.ACCEPTED)[0] == "True"


@pytest.mark.parametrize("guard", ["job-config"])
def test_no_pod_is_made_before_what_it_is_configured_and_guarded_by(guard: str) -> None:
    run = Run()
    run.cluster.refusing[guard] = FORBIDDEN
    run.settle()
    assert not run.cluster.pods
    run.wait(300)
    assert not run.cluster.pods
    del run.cluster.refusing[guard]
    run.wait(601)
    assert run.alive(enums.Role.TRAINER)


def test_stop_goes_on_though_a_deletion_is_refused() -> None:
    run = running()
    run.wanted = with_budget
    run.settle()
    run.cluster.refusing[BUDGET.name] = FORBIDDEN
    run.cluster.edit(suspend=True)
    run.until(lambda: run.summary == "Suspended")
    assert not run.cluster.pods


def not_admitted(seen: Observed) -> DesiredObjects:
    return dataclasses.replace(
        wanted(seen), problems=('spec.security.tls = "Disabled" is not allowed in this cluster',)
    )


def test_run_that_goes_on_gets_its_next_attempt_though_it_would_not_be_admitted_any_more() -> None:
    run = running()
    run.wanted = not_admitted
    run.settle()
    status, reason, message = condition(run, Type.CHILDREN_APPLIED)
    assert (status, reason) == ("False", "InvalidSpec")
    assert 'spec.security.tls = "Disabled"' in message
    assert condition(run, Type.RUNNING)[0] == "True"
    run.cluster.end_trainer(1)
    run.until(lambda: "job-trainer-2" in run.cluster.jobs_made)
    pass_time(run, 2)
    assert run.summary == "Running"


def test_run_that_is_not_admitted_any_more_is_not_resumed() -> None:
    run = running()
    run.cluster.edit(suspend=True)
    run.until(lambda: run.summary == "Suspended")
    run.wanted = not_admitted
    run.cluster.edit(suspend=False)
    run.settle()
    pass_time(run, 2)
    assert condition(run, Type.ACCEPTED)[:2] == ("False", "InvalidSpec")
    assert condition(run, Type.SUSPENDED)[0] == "True"
    assert not run.cluster.pods
    run.wanted = wanted
    run.settle()
    assert run.alive(enums.Role.TRAINER)


def test_failure_that_passes_within_a_minute_is_not_told_of() -> None:
    known = Refusal(ref=ROLLOUT, reason="ChildRejected", message="", generation=1, passing=True, since=100.0)
    assert refusals.shown([known], now=159.0) == ()
    assert refusals.shown([known], now=160.0) == (known,)


def test_edit_of_the_spec_is_tried_at_once() -> None:
    run = running()
    run.cluster.refusing[ROLLOUT.name] = INVALID
    for replicas in (3, 4):
        run.cluster.edit(rollout=run.cluster.job.spec.rollout.model_copy(update={"replicas": replicas}))  # type: ignore[union-attr]  # it is there
        run.settle()
    assert run.cluster.calls.count(f"refused {ROLLOUT.name}") == 2


def test_write_that_is_not_due_yet_is_kept_for_later() -> None:
    run = running()
    assert run.cluster.job is not None
    seen = Observed(job=run.cluster.job)
    manifest = {"kind": "Deployment", "metadata": {"name": "job-rollout"}}
    found = refusals.without_refused(Plan(actions=(Apply(manifest=manifest, due_at=50.0),)), seen, now=40.0)
    assert (found.actions, found.again_at, found.waits) == ((), 50.0, True)
