import dataclasses

import pytest

from rljob_api import enums
from rljob_operator.model import Apply, DesiredObjects, Observed, Plan, Ref, Refusal, StatusWrite
from rljob_operator.reconcile.desired import UnchangedCache, has_trainer_job, signature
from rljob_testing.fake_cluster import wanted
from rljob_testing.operator_runs import Run


def running() -> Run:
    run = Run()
    run.settle()
    run.cluster.says(enums.Phase.RUNNING, step=1)
    run.settle()
    return run


def seen(run: Run) -> Observed:
    job = run.cluster.job
    assert job is not None
    return Observed(job=job, children=dict(run.cluster.children), pods=tuple(run.cluster.pods.values()))


def settled_on(observed: Observed) -> UnchangedCache:
    found = UnchangedCache(wanted)
    found.planned(observed, Plan(), DesiredObjects())
    return found


def test_children_are_not_looked_at_again_while_nothing_changes() -> None:
    observed = seen(running())
    found = UnchangedCache(wanted)
    assert not found.desired(observed).unchanged
    found.planned(observed, Plan(actions=(StatusWrite(status=observed.status),)), DesiredObjects())
    assert found.desired(observed).unchanged
    found.forget("job-uid")
    assert not found.desired(observed).unchanged


@pytest.mark.parametrize("change", ["spec", "child", "lost child", "condition"])
def test_change_of_anything_that_they_depend_on_is_a_new_look(change: str) -> None:
    run = running()
    found = settled_on(seen(run))
    ref, child = next(iter(run.cluster.children.items()))
    if change == "spec":
        run.cluster.edit(max_steps=11)
    elif change == "child":
        run.cluster.children[ref] = dataclasses.replace(child, content=9)
    elif change == "lost child":
        del run.cluster.children[ref]
    else:
        run.cluster.end_trainer(1)
        run.reconcile()
    assert not found.desired(seen(run)).unchanged


def test_change_of_a_childs_status_is_no_new_look() -> None:
    run = running()
    found = settled_on(seen(run))
    for ref, child in list(run.cluster.children.items()):
        run.cluster.children[ref] = dataclasses.replace(child, version=child.version + 1)
    assert found.desired(seen(run)).unchanged


def test_pass_that_changed_a_child_or_met_a_problem_settles_nothing() -> None:
    observed = seen(running())
    found = UnchangedCache(wanted)
    found.planned(observed, Plan(actions=(Apply(manifest={}),)), DesiredObjects())
    assert not found.desired(observed).unchanged
    found.planned(observed, Plan(), DesiredObjects(problems=("no",)))
    assert not found.desired(observed).unchanged


def test_job_whose_trainer_is_still_to_come_or_of_which_a_child_was_refused_is_not_settled() -> None:
    run = running()
    assert has_trainer_job(seen(run))
    found = UnchangedCache(wanted)
    refusal = Refusal(ref=Ref("PodDisruptionBudget", "job-trainer"), reason="Forbidden", message="", generation=1)
    for plan in (Plan(refused=(refusal,)), Plan(waits=True)):
        found.planned(seen(run), plan, DesiredObjects())
        assert not found.desired(seen(run)).unchanged
    for ref in [ref for ref in run.cluster.children if ref.kind == "Job"]:
        del run.cluster.children[ref]
    assert not has_trainer_job(seen(run))


def test_signature_tells_contents_apart_and_not_the_order_of_children() -> None:
    observed = seen(running())
    backwards = dict(reversed(list(observed.children.items())))
    assert signature(observed) == signature(dataclasses.replace(observed, children=backwards))
