from rljob_api import enums
from rljob_api.manifest.status import JobStatus
from rljob_operator.model import Apply, Delete, Ref, StatusWrite
from rljob_operator.reconcile.reconciler import Reconciler, waves
from rljob_testing.fake_cluster import wanted
from rljob_testing.operator_runs import KEY, Run, finish


def test_pass_that_moved_a_condition_is_followed_by_one_that_sees_it() -> None:
    run = Run()
    run.settle()
    operator = Reconciler(run.cluster, desired=wanted, clock=run.clock)
    run.cluster.says(enums.Phase.RUNNING, step=1)
    again_s = finish(operator.reconcile(KEY))
    assert run.summary == "Running"
    assert again_s is not None
    assert again_s <= 1.0, "what exists only while the job runs must not wait for a change that may never come"


def test_pass_that_changed_nothing_waits_for_a_change_or_a_deadline() -> None:
    run = Run()
    run.settle()
    run.cluster.says(enums.Phase.RUNNING, step=1)
    run.settle()
    again_s = finish(Reconciler(run.cluster, desired=wanted, clock=run.clock).reconcile(KEY))
    assert again_s is None or again_s > 1.0


def _apply(kind: str, name: str) -> Apply:
    return Apply(manifest={"kind": kind, "metadata": {"name": name}})


def test_what_guards_pods_is_there_before_what_makes_them_and_the_rest_of_a_wave_does_not_wait() -> None:
    status, delete = StatusWrite(status=JobStatus()), Delete(ref=Ref("Pod", "lost"), uid="u")
    guards = [_apply("NetworkPolicy", "run-trainer"), _apply("ConfigMap", "run-config")]
    makers = [
        _apply("StatefulSet", "run-coordinator"),
        _apply("Deployment", "run-rollout"),
        _apply("Job", "run-trainer-1"),
    ]
    after = [_apply("PodDisruptionBudget", "run-trainer")]
    assert list(waves([status, delete, delete, *guards, *makers, *after])) == [
        [status], [delete], [delete], guards, makers, after,
    ]  # fmt: skip
    assert list(waves([])) == []
