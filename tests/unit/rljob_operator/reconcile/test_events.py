import itertools

import pytest

from rljob_api import enums
from rljob_api.manifest.status import AttemptStatus, Condition, JobStatus, RoleStatus, TrainerStatus
from rljob_operator.reconcile import events
from rljob_operator.reconcile.events import EventDraft
from rljob_testing.operator_runs import Run, operator_job


def condition(kind: str, status: str, reason: str, message: str = "") -> Condition:
    fields = {"type": kind, "status": status, "reason": reason, "message": message}
    return Condition.model_validate({**fields, "lastTransitionTime": "2026-01-01T00:00:00Z"})


def with_conditions(*known: Condition) -> JobStatus:
    return JobStatus().model_copy(update={"conditions": known})


@pytest.mark.parametrize(
    ("kind", "status", "reason", "type_"),
    [
        ("Running", "True", "Running", "Normal"),
        ("Failed", "True", "RestartLimitExceeded", "Warning"),
        ("Accepted", "False", "NameConflict", "Warning"),
        ("Stalled", "True", "VerifierSaturated", "Warning"),
    ],
)
def test_condition_that_becomes_what_people_wait_for_is_told(kind: str, status: str, reason: str, type_: str) -> None:
    now = with_conditions(condition(kind, status, reason, "why"))
    assert list(events.event_drafts(JobStatus(), now)) == [EventDraft(type_, reason, f"{kind}: why")]
    assert list(events.event_drafts(now, now)) == []


def test_condition_that_mirrors_another_is_not_told_twice() -> None:
    after = with_conditions(condition("Stalled", "True", "Failed"), condition("Failed", "True", "StallTimeout"))
    assert [told.reason for told in events.event_drafts(JobStatus(), after)] == ["StallTimeout"]


def test_end_of_an_attempt_is_told_with_class_reason_code_and_step() -> None:
    ended = AttemptStatus(number=1, end="2026-01-01T00:00:00Z", outcome="failed", reason="OOMKilled", step=7)
    ended = ended.model_copy(update={"class_": "application", "exit_code": 137})
    after = JobStatus().model_copy(update={"trainer": TrainerStatus(attempts=(ended,))})
    (told,) = events.event_drafts(JobStatus(), after)
    assert told.note == "trainer attempt 1 ended (application): OOMKilled, exit code 137, after step 7"


def test_scaling_is_told() -> None:
    before, after = (
        JobStatus().model_copy(update={"roles": (RoleStatus(name="rollout", desired=count),)}) for count in (2, 5)
    )
    assert list(events.event_drafts(before, after)) == [EventDraft("Normal", "RolloutScaled", "rollouts: 2 -> 5")]


def test_equal_news_of_a_job_come_once_a_minute() -> None:
    teller, told = events.EventRateLimiter(), EventDraft("Normal", "Running", "")
    times = (0.0, 59.0, 60.0, 61.0)
    assert [teller.allow("uid", told, now=now) for now in times] == [True, False, True, False]
    assert teller.allow("other", told, now=61.0)


def test_undisturbed_run_tells_its_start_and_its_end_and_nothing_of_its_steps() -> None:
    run = Run(operator_job())
    run.settle()
    for step in range(1, 10):
        run.cluster.says(enums.Phase.RUNNING, step=step)
        run.settle()
    run.cluster.end_trainer(0)
    run.cluster.says(enums.Phase.FINISHED, step=10)
    run.until(lambda: run.summary == "Succeeded")
    statuses = [JobStatus(), *run.cluster.statuses]
    pairs = itertools.pairwise(statuses)
    told = [one.reason for before, after in pairs for one in events.event_drafts(before, after)]
    assert told == ["Running", "MaxStepsReached", "TrainerAttemptEnded"]


def test_event_names_the_job_and_who_reports_it() -> None:
    job = operator_job()
    body = events.body(job, EventDraft("Normal", "Running", "x" * 2000), instance="operator-0", now=0.0)
    assert body["regarding"] == {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "name": "job",
        "namespace": "default",
        "uid": "job-uid",
    }
    assert body["reportingController"] == "rljob.dev/operator"
    assert body["eventTime"] == "1970-01-01T00:00:00.000000Z"
    assert len(str(body["note"])) == 1024
