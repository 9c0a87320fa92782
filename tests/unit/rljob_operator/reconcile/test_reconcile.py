from rljob_api import enums
from rljob_api.manifest.status import JobStatus
from rljob_operator.model import Apply, Delete, DesiredObjects, Observed, Ref, StatusWrite
from rljob_operator.reconcile.reconciler import Reconciler, only_begins, waves
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


def test_job_that_begins_sends_one_request_where_it_is_to_give_way_and_the_next_pass_sends_the_rest() -> None:
    run, asked = Run(), list[str]()

    def gives_way(key: str) -> bool:
        asked.append(key)
        return len(asked) == 1

    operator = Reconciler(run.cluster, desired=wanted, clock=run.clock, gives_way=gives_way)
    finish(operator.reconcile(KEY))
    assert (run.cluster.calls, asked) == (["status"], [KEY])
    finish(operator.reconcile(KEY))
    assert len(run.cluster.children) == 5


def test_children_are_worked_out_once_in_a_pass_though_it_reads_the_job_again_before_it_begins() -> None:
    run, looks = Run(), list[int]()

    def counted(observed: Observed) -> DesiredObjects:
        looks.append(observed.version)
        return wanted(observed)

    finish(Reconciler(run.cluster, desired=counted, clock=run.clock).reconcile(KEY))
    assert (len(looks), run.cluster.jobs_made) == (1, ["job-trainer-1"])


def test_job_that_stops_gives_way_to_none() -> None:
    run, asked = Run(), list[str]()
    run.settle()
    run.cluster.edit(suspend=True)

    def gives_way(key: str) -> bool:
        asked.append(key)
        return True

    before = len(run.cluster.calls)
    finish(Reconciler(run.cluster, desired=wanted, clock=run.clock, gives_way=gives_way).reconcile(KEY))
    assert asked == []
    assert any(call.startswith("delete job-trainer") for call in run.cluster.calls[before:])


def test_only_reports_and_new_children_can_wait() -> None:
    status, new = StatusWrite(status=JobStatus()), _apply("ConfigMap", "run-config")
    assert only_begins([status, new, new])
    assert not only_begins([status, new, Delete(ref=Ref("Job", "run-trainer-1"), uid="u")])
    assert not only_begins([status, Apply(manifest=new.manifest, uid="u")])
