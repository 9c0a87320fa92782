import dataclasses

from rljob_api import enums, types
from rljob_operator.model import Report
from rljob_testing.operator_runs import Run, operator_job


def four_rollouts() -> Run:
    """Return a run whose second rollout lags a version behind."""
    run = Run(operator_job({"rollout": {"replicas": 4, "drainSeconds": 60}}))
    run.settle()
    run.cluster.says(enums.Phase.RUNNING, step=1)
    report = run.cluster.report
    assert report is not None
    versions = {"job-rollout-0": 5, "job-rollout-1": 4, "job-rollout-2": 5, "job-rollout-3": 5}
    pods = [types.PodStatus(role="rollout", pod=pod, serving_version=version) for pod, version in versions.items()]
    run.cluster.report = Report(run=dataclasses.replace(report.run, pods=pods), read_at=report.read_at)
    run.settle()
    run.cluster.calls.clear()
    return run


def wanted(run: Run, replicas: int) -> None:
    job = run.cluster.job
    assert job is not None
    run.cluster.edit(rollout=job.spec.rollout.model_copy(update={"replicas": replicas}))


def test_victims_are_marked_before_the_count_is_lowered() -> None:
    run = four_rollouts()
    wanted(run, 3)
    run.reconcile()
    assert run.cluster.calls == ["status", "cost job-rollout-1 -1000"]
    run.reconcile()
    assert "apply job-rollout" in run.cluster.calls


def test_mark_of_a_shrink_that_was_taken_back_is_removed() -> None:
    run = four_rollouts()
    wanted(run, 3)
    run.reconcile()
    wanted(run, 4)
    run.reconcile()
    assert run.cluster.calls[-1] == "cost job-rollout-1 0"
    assert "apply job-rollout" not in run.cluster.calls


def test_growing_marks_nobody() -> None:
    run = four_rollouts()
    wanted(run, 6)
    run.reconcile()
    assert [call for call in run.cluster.calls if call.startswith("cost")] == []
    assert "apply job-rollout" in run.cluster.calls


def test_changes_of_the_number_are_kept_in_status_and_stopping_is_none() -> None:
    run = four_rollouts()
    for replicas in (3, 6, 5, 4, 3, 2):
        wanted(run, replicas)
        run.settle()
    run.cluster.edit(suspend=True)
    run.settle()
    run.cluster.edit(suspend=False)
    run.settle()
    job = run.cluster.job
    assert job is not None
    assert job.status is not None
    assert job.status.scaling is not None
    history = [(change.from_, change.to) for change in job.status.scaling.history]
    assert history == [(3, 6), (6, 5), (5, 4), (4, 3), (3, 2)], "the last five"
