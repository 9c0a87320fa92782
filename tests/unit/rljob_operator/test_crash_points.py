"""The operator dies before or after any of its calls, again and again; the end is that of an undisturbed run."""

import random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rljob_api import enums
from rljob_testing.every_example import as_many
from rljob_testing.operator_runs import Run, operator_job

# As many as 18.1 asks for, the first ones the same every time.
NUM_TRIPLES = as_many(1000, usually=120)
SEED = 20
NUM_POINTS = 90
NUM_ORDERS = as_many(32, usually=8)
JOB = operator_job()


def _tell(run: Run, *, step: int) -> None:
    run.cluster.says(enums.Phase.RUNNING, step=step, checkpoint_step=step)


def story(run: Run, order: random.Random) -> None:
    """A run that fails once, is suspended and resumed, and finishes; the order of the first two and waits vary."""
    run.settle()
    _tell(run, step=1)
    acts = [_fail_once, _suspend_and_resume]
    order.shuffle(acts)
    for step, act in enumerate(acts, start=2):
        act(run, order)
        run.until(lambda: len(run.alive(enums.Role.TRAINER)) == 2)
        _tell(run, step=step)
        run.wait(order.choice([0.0, 1.0, 40.0]))
    run.cluster.end_trainer(0)
    run.cluster.says(enums.Phase.FINISHED, step=10)
    run.until(lambda: run.summary == "Succeeded")
    run.wait(30.0)


def _fail_once(run: Run, order: random.Random) -> None:
    run.cluster.end_trainer(order.choice([1, 75]), rank=order.choice([0, 1, None]))
    run.wait(order.choice([0.0, 12.0]))


def _suspend_and_resume(run: Run, order: random.Random) -> None:
    run.cluster.edit(suspend=True)
    for _ in range(order.randrange(4)):
        run.reconcile()
        run.cluster.settle()
        run.clock.tick(order.choice([0.0, 1.0, 4.0]))
    if order.random() < 0.5:
        run.settle()
    run.cluster.edit(suspend=False)
    run.settle()


def end_state(run: Run) -> tuple[object, ...]:
    job = run.cluster.job
    assert job is not None
    assert job.status is not None
    restarts = job.status.restarts
    assert restarts is not None
    children = sorted((ref, child.wanted_replicas) for ref, child in run.cluster.children.items())
    running = sorted(pod.name for pod in run.cluster.pods.values() if not pod.is_terminal)
    return run.summary, job.status.attempt, restarts.total, children, running, run.cluster.jobs_made


def told(order_seed: int, kill_at: frozenset[int] = frozenset()) -> Run:
    run = Run(JOB, kill_at=kill_at)
    story(run, random.Random(order_seed))
    return run


@pytest.fixture(scope="module")
def undisturbed() -> list[Run]:
    """Return a run of each order in which no operator dies."""
    return [told(order_seed) for order_seed in range(NUM_ORDERS)]


@pytest.mark.timeout(900)
def test_operator_killed_before_or_after_any_call_ends_where_an_undisturbed_one_ends(undisturbed: list[Run]) -> None:
    for point in range(NUM_POINTS):
        order_seed = point % NUM_ORDERS
        run = told(order_seed, frozenset((point,)))
        assert end_state(run) == end_state(undisturbed[order_seed]), (order_seed, point)
        # A run that had fewer calls is over before.
        assert run.num_deaths == (point < undisturbed[order_seed].cluster.num_points), (order_seed, point)
    assert max(run.cluster.num_points for run in undisturbed) <= NUM_POINTS, "no call is left out"


@pytest.mark.timeout(900)  # a minute and a half of processor time where every triple is asked for
def test_killed_operators_end_where_an_undisturbed_one_ends(undisturbed: list[Run]) -> None:
    chance = random.Random(SEED)
    print(f"seed {SEED}")
    num_deaths = 0
    for _ in range(NUM_TRIPLES):
        order_seed = chance.randrange(NUM_ORDERS)
        kill_at = frozenset(chance.sample(range(NUM_POINTS), chance.randrange(1, 4)))
        run = told(order_seed, kill_at)
        assert end_state(run) == end_state(undisturbed[order_seed]), (order_seed, sorted(kill_at))
        num_deaths += run.num_deaths
    assert num_deaths > NUM_TRIPLES, "the points lie in the run"


EVENTS = (
    "suspend", "resume", "fail", "infra", "config", "finish", "step", "lose_job", "lose_pod", "lose_node", "quiet",
    "deny", "admit", "back", "on", "act",
)  # fmt: skip


@settings(max_examples=40, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.lists(st.sampled_from(EVENTS), max_size=25))
def test_conditions_agree_and_ends_are_kept_whatever_happens(events: list[str]) -> None:
    run = Run()
    for step, event in enumerate(events):
        _happen(run, event, step)
        run.reconcile()
        run.cluster.settle()
        run.check()


@settings(max_examples=30, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.lists(st.sampled_from(EVENTS), max_size=25))
def test_job_comes_to_rest_whatever_happened(events: list[str]) -> None:
    run = Run()
    for step, event in enumerate(events):
        _happen(run, event, step)
        run.reconcile()
        run.cluster.settle()
    for _ in range(60):
        run.settle(most=3000)
        before = len(run.cluster.calls)
        again_s = run.reconcile()
        if again_s is None:
            break
        run.clock.tick(again_s + 0.5)
        run.settle(most=3000)
        if len(run.cluster.calls) == before:
            break
    else:
        raise AssertionError(f"never at rest: {run.cluster.calls[-12:]}")


def _happen(run: Run, event: str, step: int) -> None:
    cluster = run.cluster
    match event:
        case "suspend" | "resume":
            cluster.edit(suspend=event == "suspend")
        case "fail" | "infra" | "config":
            cluster.end_trainer({"fail": 1, "infra": 75, "config": 78}[event], rank=0)
        case "finish":
            cluster.end_trainer(0)
            cluster.says(enums.Phase.FINISHED, step=10)
        case "step":
            cluster.says(enums.Phase.RUNNING, step=step, checkpoint_step=step)
        case "lose_job":
            for ref in [ref for ref in cluster.children if ref.kind == "Job"]:
                del cluster.children[ref]
        case "lose_pod":
            for name in list(cluster.pods)[:1]:
                del cluster.pods[name]
        case "lose_node":
            # The step says which, so that each pod is lost in some run.
            alive = sorted(pod.name for pod in cluster.pods.values() if not pod.is_terminal)
            cluster.lose_node(*alive[step % len(alive) :][:1] if alive else (), grace_s=30.0)
        case "quiet":
            cluster.silent_since = run.clock.now()
        case "deny" | "admit":
            cluster.denied = {enums.Role.TRAINER: "exceeded quota"} if event == "deny" else {}
        case "back" | "on":
            run.clock.jump(-50.0 if event == "back" else 400.0)
        case _:
            run.clock.tick(1.0)
