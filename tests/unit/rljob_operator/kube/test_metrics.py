import asyncio
import dataclasses
import itertools
from typing import Literal

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rljob_api import enums
from rljob_api.manifest.status import Condition, JobStatus
from rljob_operator.kube import kinds, permissions
from rljob_operator.model import Observed
from rljob_operator.telemetry import metric_names
from rljob_operator.telemetry.metrics import Metrics
from rljob_testing.operator_runs import KEY, Run, operator_job

Series = dict[tuple[str, frozenset[str]], float]
JOB = ("default", "job")


def series(metrics: Metrics) -> Series:
    """Return values by name and label values, without the process's own."""
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
        if not family.name.startswith("process_")
    }


def value(found: Series, name: str, *labels: str) -> float | None:
    """Return a series' value; None if there is none."""
    return found.get((name, frozenset(labels)))


def of_job(found: Series) -> list[str]:
    """Return the names of the job's series."""
    return [name for name, labels in found if set(JOB) <= labels]


def seen(run: Run) -> Observed:
    job = run.cluster.job
    assert job is not None
    return Observed(
        job=job, children=run.cluster.children, pods=tuple(run.cluster.pods.values()), report=run.cluster.report
    )


def condition(kind: str, status: Literal["True", "False"], since: str) -> Condition:
    return Condition.model_validate({"type": kind, "status": status, "reason": "Told", "lastTransitionTime": since})


def test_job_has_series_while_it_is_there_and_none_afterwards() -> None:
    run, metrics = Run(), Metrics()
    run.settle()
    run.cluster.says(enums.Phase.RUNNING, step=1)
    run.settle()
    metrics.saw(KEY, seen(run), certificate_ends={})
    found = series(metrics)
    assert value(found, "rljob_state", *JOB, "Running") == 1
    assert value(found, "rljob_condition", *JOB, "Running") == 1
    assert value(found, "rljob_condition", *JOB, "Failed") == 0
    assert value(found, "rljob_role_pods", *JOB, "trainer", "ready") == 2
    assert value(found, "rljob_trainer_attempt", *JOB) == 1
    assert not [name for name, _ in found if name == "rljob_stalled"], "no placeholder"
    metrics.forget(KEY)
    assert of_job(series(metrics)) == []


def test_pods_that_the_api_server_denies_are_pending_so_that_an_alert_tells_of_them() -> None:
    run, metrics = Run(), Metrics()
    run.cluster.denied = {enums.Role.TRAINER: "exceeded quota", enums.Role.ROLLOUT: "exceeded quota"}
    run.settle()
    observed = asyncio.run(run.cluster.observe(KEY, live=False))
    assert observed is not None
    metrics.saw(KEY, observed, certificate_ends={})
    found = series(metrics)
    pending = [value(found, "rljob_role_pods", *JOB, str(role), "pending") for role in enums.STANDARD_ROLES]
    assert dict(zip(enums.STANDARD_ROLES, pending, strict=True)) == {
        enums.Role.COORDINATOR: 0, enums.Role.ROLLOUT: 2, enums.Role.VERIFIER: 0, enums.Role.TRAINER: 2,
    }  # fmt: skip


def test_series_follow_a_status_that_is_written_and_that_no_pass_has_seen_yet() -> None:
    run, metrics = Run(), Metrics()
    run.settle()
    metrics.saw(KEY, seen(run), certificate_ends={})
    assert value(series(metrics), "rljob_state", *JOB, "Running") is None
    before = seen(run)
    run.cluster.says(enums.Phase.RUNNING, step=1)
    run.settle()
    metrics.wrote(before.job, before.status, seen(run).status)
    found = series(metrics)
    assert value(found, "rljob_state", *JOB, "Running") == 1
    assert value(found, "rljob_condition", *JOB, "Running") == 1


def test_without_series_of_jobs_there_are_those_of_all_jobs_and_no_others() -> None:
    run, metrics = Run(), Metrics(job_series=False)
    run.settle()
    metrics.saw(KEY, seen(run), certificate_ends={})
    names = {name for name, _ in series(metrics)}
    assert of_job(series(metrics)) == []
    assert {"rljob_startup_seconds_count", "rljob_operator_info"} <= names
    metrics.forget(KEY)


def test_restarts_are_counted_by_class_when_status_says_so() -> None:
    run, metrics = Run(), Metrics()
    run.settle()
    run.cluster.end_trainer(75)
    run.wait(15.0)
    job = run.cluster.job
    assert job is not None
    metrics.saw(KEY, seen(run), certificate_ends={})
    for before, after in itertools.pairwise(run.cluster.statuses):
        metrics.wrote(job, before, after)
    assert value(series(metrics), "rljob_restarts_total", *JOB, "trainer", "infrastructure") == 1
    metrics.forget(KEY)
    assert of_job(series(metrics)) == []


def test_series_of_a_run_with_failures_stay_within_the_budget_for_one_job() -> None:
    """8.4: 60 and 90 a job. A rollout is lost, a trainer attempt fails, the run ends; children and requests of all."""
    run = Run()
    metrics = Metrics(now=run.clock.now)
    run.settle()
    run.cluster.says(enums.Phase.RUNNING, step=3)
    run.settle()
    whole = dict(run.cluster.pods)
    ends = dict.fromkeys(enums.STANDARD_ROLES, 1_800_000_000.0)
    metrics.saw(KEY, seen(run), certificate_ends=ends)
    run.cluster.pods = {
        **whole,
        "job-rollout-0": dataclasses.replace(whole["job-rollout-0"], phase="Failed", ready=False),
    }
    metrics.saw(KEY, seen(run), certificate_ends=ends)
    run.clock.tick(45.0)
    run.cluster.pods = {**whole, "job-rollout-0": dataclasses.replace(whole["job-rollout-0"], uid="fresh")}
    run.cluster.says(enums.Phase.RUNNING, step=4)
    metrics.saw(KEY, seen(run), certificate_ends=ends)
    run.cluster.end_trainer(75)
    run.wait(15.0)
    job = run.cluster.job
    assert job is not None
    ended = run.cluster.statuses[-1].model_copy(update={"completion_time": "2040-01-01T00:00:00Z"})
    for before, after in itertools.pairwise([*run.cluster.statuses, ended]):
        metrics.wrote(job, before, after)
    metrics.gauge("rljob_operator_leader", lambda: 1.0, shard="0")
    for verb in ("get", "put", "post"):
        metrics.answered(verb, "leases", 200)
    for name in ("queue_depth", "queue_oldest_seconds", "refused_lists", "status_streams", "report_age_seconds"):
        metrics.gauge(f"rljob_operator_{name}", lambda: 0.0)
    for name, kind in itertools.product(("cache_objects", "watch_lag_seconds"), kinds.CACHED_KINDS):
        metrics.gauge(f"rljob_operator_{name}", lambda: 0.0, kind=kind)
    for rule in permissions.RULES:
        for verb in ("list", "watch"):
            metrics.answered(verb, rule.resources[0], 200)
    for kind in {child.ref.kind for child in run.cluster.children.values()}:
        metrics.applied(kind, 0.2)
        metrics.answered("patch", kind.lower(), 201)
        metrics.answered("delete", kind.lower(), 200)
    for verb, resource, status in (("patch", "rljobs/status", 200), ("post", "events", 201), ("get", "rljobs", 200)):
        metrics.answered(verb, resource, status)
    for result in ("ok", "requeue"):
        metrics.reconciled(result, 0.01)
    for answered in (True, False):
        metrics.reported(answered)
    found = series(metrics)
    own_process = metrics.exposition().decode().count("\nprocess_")
    measured = {"rljob_recovery_seconds_sum", "rljob_run_seconds_sum", "rljob_startup_seconds_sum"}
    assert measured <= {name for name, _ in found}, "all that a failure shows is counted"
    assert len(of_job(found)) <= 90
    assert len(found) + own_process <= 60 + 90


def test_requests_are_told_apart_by_what_they_write_and_by_code_where_they_fail() -> None:
    metrics = Metrics()
    for verb, resource, status in (
        ("list", "pods", 200),
        ("list", "jobs", 200),
        ("patch", "pods", 200),
        ("patch", "pods", 201),
    ):
        metrics.answered(verb, resource, status)
    metrics.answered("patch", "pods", 409)
    metrics.answered("list", "pods", 0)
    metrics.answered("patch", "rljobs/status", 200)
    for made in ("deployments", "statefulsets", "jobs"):
        metrics.answered("post", made, 201)
    metrics.answered("post", "configmaps", 201)
    found = series(metrics)
    requests = "rljob_operator_api_requests_total"
    assert value(found, requests, "list", "all", "2xx") == 2
    assert value(found, requests, "patch", "pods", "2xx") == 2
    assert value(found, requests, "patch", "pods", "409") == 1
    assert value(found, requests, "list", "all", "0") == 1
    assert value(found, requests, "patch", "rljobs/status", "2xx") == 1
    assert value(found, requests, "post", "workloads", "2xx") == 3
    assert value(found, requests, "post", "others", "2xx") == 1


def test_requests_passes_and_reports_are_counted() -> None:
    metrics = Metrics()
    metrics.answered("patch", "pods", 403)
    metrics.reconciled("ok", 0.01)
    metrics.failed(ValueError("x"))
    metrics.reported(False)
    metrics.applied("Deployment", 0.2)
    found = series(metrics)
    assert value(found, "rljob_operator_api_requests_total", "patch", "pods", "403") == 1
    assert value(found, "rljob_operator_reconcile_seconds_count", "ok") == 1
    assert value(found, "rljob_operator_reconcile_errors_total", "ValueError") == 1
    assert value(found, "rljob_operator_status_reports_total", "no_answer") == 1
    assert value(found, "rljob_operator_spec_to_child_seconds_count", "workload") == 1


def test_a_change_that_reaches_a_child_is_timed_by_the_bounds_that_are_promised() -> None:
    (metric,) = (each for each in metric_names.METRICS if each.name == "rljob_operator_spec_to_child_seconds")
    assert metric.buckets == (0.5, 3.0)


def test_ends_of_certificates_are_shown_by_role_and_absent_for_a_job_in_plain_text() -> None:
    run, metrics = Run(), Metrics()
    run.settle()
    metrics.saw(KEY, seen(run), certificate_ends={enums.Role.TRAINER: 1_800_000_000.0})
    expiry = "rljob_certificate_expiry_timestamp_seconds"
    assert value(series(metrics), expiry, *JOB, "trainer") == 1_800_000_000.0
    metrics.saw(KEY, seen(run), certificate_ends={})
    assert expiry not in {name for name, _ in series(metrics)}


def test_restarts_of_a_job_are_shown_from_zero() -> None:
    run, metrics = Run(), Metrics()
    run.settle()
    metrics.saw(KEY, seen(run), certificate_ends={})
    for class_ in ("application", "infrastructure", "requested"):
        assert value(series(metrics), "rljob_restarts_total", *JOB, "trainer", class_) == 0


def test_start_and_length_of_a_run_are_timed_once_by_how_it_ends() -> None:
    """Ten minutes to the first step, an hour in all."""
    run, metrics = Run(), Metrics()
    job = run.cluster.job
    assert job is not None
    began = JobStatus().model_copy(update={"start_time": "2030-01-01T00:00:00Z"})
    stepped = began.model_copy(update={"first_step_time": "2030-01-01T00:10:00Z"})
    ended = stepped.model_copy(update={"completion_time": "2030-01-01T01:00:00Z"})
    for before, after in itertools.pairwise((began, stepped, stepped, ended, ended)):
        metrics.wrote(job, before, after)
    found = series(metrics)
    assert value(found, "rljob_startup_seconds_count", "first_step") == 1
    assert value(found, "rljob_startup_seconds_sum", "first_step") == 600
    assert value(found, "rljob_run_seconds_sum", "failed") == 3600
    assert value(found, "rljob_run_seconds_count", "complete") is None


def test_a_run_waits_in_the_queue_from_what_asked_for_it_to_its_first_pod() -> None:
    """Accepted at ten; suspended, and resumed at twelve: the first pod came two minutes later."""
    run, metrics = Run(), Metrics()
    job = run.cluster.job
    assert job is not None
    conditions = (
        condition("Accepted", "True", "2030-01-01T10:00:00Z"),
        condition("Suspended", "False", "2030-01-01T12:00:00Z"),
    )
    asked = JobStatus().model_copy(update={"conditions": conditions})
    begun = asked.model_copy(update={"start_time": "2030-01-01T12:02:00Z"})
    for before, after in itertools.pairwise((asked, begun, begun)):
        metrics.wrote(job, before, after)
    found = series(metrics)
    assert value(found, "rljob_startup_seconds_sum", "queue") == 120
    assert value(found, "rljob_startup_seconds_count", "queue") == 1


def test_phases_of_starts_are_shown_from_zero() -> None:
    found = series(Metrics())
    assert [value(found, "rljob_startup_seconds_count", phase) for phase in metric_names.STARTUP_PHASES] == [0] * 5


def test_each_pod_that_becomes_ready_tells_where_its_start_lost_time() -> None:
    run, metrics = Run(), Metrics()
    metrics.saw(KEY, seen(run), certificate_ends={})
    run.settle()
    timed = {"created_at": 100.0, "scheduled_at": 101.0, "started_at": 131.0, "ready_at": 191.0}
    run.cluster.pods = {
        name: dataclasses.replace(pod, ready=pod.role is enums.Role.ROLLOUT, **timed)
        for name, pod in run.cluster.pods.items()
    }
    num_rollouts = sum(pod.role is enums.Role.ROLLOUT for pod in run.cluster.pods.values())
    for _ in range(2):
        metrics.saw(KEY, seen(run), certificate_ends={})
    found = series(metrics)
    assert num_rollouts > 0
    for phase, seconds in (("schedule", 1), ("pull", 30), ("load", 60)):
        assert value(found, "rljob_startup_seconds_count", phase) == num_rollouts
        assert value(found, "rljob_startup_seconds_sum", phase) == num_rollouts * seconds


def test_a_run_that_completes_is_told_apart_from_one_that_fails() -> None:
    run, metrics = Run(), Metrics()
    run.settle()
    run.cluster.says(enums.Phase.RUNNING, step=1)
    run.settle()
    run.cluster.end_trainer(0)
    run.cluster.says(enums.Phase.FINISHED, step=10)
    run.settle()
    job = run.cluster.job
    assert job is not None
    for before, after in itertools.pairwise(run.cluster.statuses):
        metrics.wrote(job, before, after)
    found = series(metrics)
    assert value(found, "rljob_run_seconds_count", "complete") == 1
    assert value(found, "rljob_run_seconds_count", "failed") is None


def test_a_lost_pod_is_counted_by_cause_and_its_role_timed_until_it_is_whole_and_a_step_is_finished() -> None:
    run = Run()
    metrics = Metrics(now=run.clock.now)
    run.settle()
    run.cluster.says(enums.Phase.RUNNING, step=3)
    run.settle()
    metrics.saw(KEY, seen(run), certificate_ends={})
    whole = dict(run.cluster.pods)
    assert value(series(metrics), "rljob_pod_replacements_total", *JOB, "rollout", "oom") == 0
    died = dataclasses.replace(whole["job-rollout-0"], phase="Failed", ready=False, container_reason="OOMKilled")
    run.cluster.pods = {**whole, "job-rollout-0": died}
    metrics.saw(KEY, seen(run), certificate_ends={})
    assert value(series(metrics), "rljob_pod_replacements_total", *JOB, "rollout", "oom") == 1
    run.clock.tick(45.0)
    run.cluster.pods = {**whole, "job-rollout-0": dataclasses.replace(whole["job-rollout-0"], uid="fresh")}
    run.cluster.says(enums.Phase.RUNNING, step=4)
    metrics.saw(KEY, seen(run), certificate_ends={})
    found = series(metrics)
    assert value(found, "rljob_recovery_seconds_sum", "rollout") == 45
    assert value(found, "rljob_pod_replacements_total", *JOB, "rollout", "oom") == 1


def test_pods_of_a_job_that_is_suspended_are_not_counted_as_lost() -> None:
    run, metrics = Run(), Metrics()
    run.settle()
    metrics.saw(KEY, seen(run), certificate_ends={})
    run.cluster.edit(suspend=True)
    run.cluster.pods = {}
    metrics.saw(KEY, seen(run), certificate_ends={})
    lost = [at for (name, _), at in series(metrics).items() if name == "rljob_pod_replacements_total"]
    assert lost
    assert set(lost) == {0.0}


@pytest.mark.parametrize(
    ("autoscaling", "source"),
    [
        (None, "user"),
        ({"minReplicas": 1, "maxReplicas": 8, "provider": "HPA"}, "HPA"),
        ({"minReplicas": 1, "maxReplicas": 8, "provider": "KEDA"}, "KEDA"),
    ],
)
def test_changes_of_the_number_of_rollouts_are_counted_by_direction_and_by_who_may_make_them(
    autoscaling: dict[str, object] | None, source: str
) -> None:
    rollout = {"replicas": 2, "drainSeconds": 60} | ({"autoscaling": autoscaling} if autoscaling else {})
    run, metrics = Run(operator_job({"rollout": rollout})), Metrics()
    run.settle()
    for replicas in (4, 3, 5):
        assert run.cluster.job is not None
        run.cluster.edit(rollout=run.cluster.job.spec.rollout.model_copy(update={"replicas": replicas}))
        run.settle()
    job = run.cluster.job
    assert job is not None
    for before, after in itertools.pairwise(run.cluster.statuses):
        metrics.wrote(job, before, after)
    found = series(metrics)
    assert value(found, "rljob_rollout_scale_total", *JOB, "up", source) == 2
    assert value(found, "rljob_rollout_scale_total", *JOB, "down", source) == 1
