"""Two operators at once, by partition or careless scaling: caches lag, writes conflict, answers get lost, both die.

The end is that of one undisturbed operator: no child twice, no orphan, no failure counted twice (reference 1.13, 18.2).
"""

import random

import pytest

from rljob_api import enums
from rljob_testing.every_example import as_many
from rljob_testing.operator_rivals import Faults, Rivals
from rljob_testing.operator_runs import Run, operator_job

NUM_ORDERS = 8
# Together they die more than a thousand times where every example is asked for.
NUM_RUNS = as_many(60, usually=2 * NUM_ORDERS)
# Of a run.
NUM_DEATHS = 16
SEED = 21
JOB = operator_job()
TROUBLE = Faults(hears=0.15, conflicts=0.05, lost=0.05, dies=0.02)


def _story(run: Run, order: random.Random) -> None:
    """A run that fails, is suspended, resized and resumed, and finishes; a child is taken away by hand."""
    run.settle()
    run.cluster.says(enums.Phase.RUNNING, step=1, checkpoint_step=1)
    run.settle()
    run.cluster.end_trainer(order.choice([1, 75]), rank=order.choice([0, 1, None]))
    run.until(lambda: len(run.alive(enums.Role.TRAINER)) == 2)
    run.cluster.says(enums.Phase.RUNNING, step=2, checkpoint_step=2)
    run.settle()
    run.cluster.edit(suspend=True)
    run.until(lambda: run.summary == "Suspended")
    run.cluster.edit(suspend=False)
    run.until(lambda: len(run.alive(enums.Role.TRAINER)) == 2)
    run.cluster.says(enums.Phase.RUNNING, step=3, checkpoint_step=3)
    run.settle()
    lost = order.choice([ref for ref in sorted(run.cluster.children) if ref.kind == "Deployment"])
    del run.cluster.children[lost]
    run.settle()
    run.cluster.end_trainer(0)
    run.cluster.says(enums.Phase.FINISHED, step=10)
    run.until(lambda: run.summary == "Succeeded")
    run.wait(30.0)


def _end(run: Run) -> tuple[object, ...]:
    job = run.cluster.job
    assert job is not None
    assert job.status is not None
    assert job.status.restarts is not None
    assert job.status.trainer is not None
    outcomes = [(one.number, one.outcome, one.class_) for one in job.status.trainer.attempts]
    running = sorted(pod.name for pod in run.cluster.pods.values() if not pod.is_terminal)
    return run.summary, outcomes, job.status.restarts.total, sorted(run.cluster.children), running


def _told(run: Run, order_seed: int) -> Run:
    _story(run, random.Random(order_seed))
    return run


@pytest.mark.timeout(900)  # a minute of processor time where every run is asked for
def test_two_operators_end_where_an_undisturbed_one_ends() -> None:
    print(f"seed {SEED}")
    chance, num_deaths = random.Random(SEED), 0
    alone = [_end(_told(Run(JOB), order_seed)) for order_seed in range(NUM_ORDERS)]
    for number in range(NUM_RUNS):
        order_seed, seed = number % NUM_ORDERS, chance.randrange(1 << 30)
        run = _told(Rivals(JOB, seed=seed, faults=TROUBLE), order_seed)
        assert _end(run) == alone[order_seed], (order_seed, seed)
        assert run.cluster.jobs_made == ["job-trainer-1", "job-trainer-2", "job-trainer-3"], (order_seed, seed)
        num_deaths += run.num_deaths
    assert num_deaths > NUM_DEATHS * NUM_RUNS
