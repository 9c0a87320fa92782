import dataclasses

import pytest

from rljob_api import names
from rljob_operator.model import Apply, Observed, Plan, Ref, Refusal, StatusWrite, Wanted
from rljob_operator.reconcile.desired import Settled, may_settle, signature
from rljob_testing.fake_cluster import wanted
from rljob_testing.operator_runs import Run


def running() -> Run:
    run = Run()
    run.settle()
    run.cluster.says(names.Phase.RUNNING, step=1)
    run.settle()
    return run


def seen(run: Run) -> Observed:
    job = run.cluster.job
    assert job is not None
    return Observed(job=job, children=dict(run.cluster.children), pods=tuple(run.cluster.pods.values()))


def settled_on(observed: Observed) -> Settled:
    found = Settled(wanted)
    found.planned(observed, Plan(), Wanted())
    return found


def test_children_are_not_looked_at_again_while_nothing_changes() -> None:
    observed = seen(running())
    found = Settled(wanted)
    assert not found.wanted(observed).settled
    found.planned(observed, Plan(actions=(StatusWrite(status=observed.status),)), Wanted())
    assert found.wanted(observed).settled
    found.forget("job-uid")
    assert not found.wanted(observed).settled


@pytest.mark.parametrize("change", ["spec", "child", "lost child", "condition"])
def test_change_of_anything_that_they_depend_on_is_a_new_look(change: str) -> None:
    run = running()
    found = settled_on(seen(run))
    ref, child = next(iter(run.cluster.children.items()))
    if change == "spec":
        run.cluster.edit(max_steps=11)
    elif change == "child":
        run.cluster.children[ref] = dataclasses.replace(child, version=9)
    elif change == "lost child":
        del run.cluster.children[ref]
    else:
        run.cluster.end_trainer(1)
        run.reconcile()
    assert not found.wanted(seen(run)).settled


def test_pass_that_changed_a_child_or_met_a_problem_settles_nothing() -> None:
    observed = seen(running())
    found = Settled(wanted)
    found.planned(observed, Plan(actions=(Apply(manifest={}),)), Wanted())
    assert not found.wanted(observed).settled
    found.planned(observed, Plan(), Wanted(problems=("no",)))
    assert not found.wanted(observed).settled


def test_job_whose_trainer_is_still_to_come_or_of_which_a_child_was_refused_is_not_settled() -> None:
    run = running()
    assert may_settle(seen(run))
    found = Settled(wanted)
    refusal = Refusal(ref=Ref("PodDisruptionBudget", "job-trainer"), reason="Forbidden", message="", generation=1)
    for plan in (Plan(refused=(refusal,)), Plan(waits=True)):
        found.planned(seen(run), plan, Wanted())
        assert not found.wanted(seen(run)).settled
    for ref in [ref for ref in run.cluster.children if ref.kind == "Job"]:
        del run.cluster.children[ref]
    assert not may_settle(seen(run))


def test_signature_tells_versions_apart_and_not_the_order_of_children() -> None:
    observed = seen(running())
    backwards = dict(reversed(list(observed.children.items())))
    assert signature(observed) == signature(dataclasses.replace(observed, children=backwards))
