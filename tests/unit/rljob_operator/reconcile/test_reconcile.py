from rljob_api import enums
from rljob_operator.reconcile.reconciler import Reconciler
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
