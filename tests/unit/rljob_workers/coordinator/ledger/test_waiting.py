"""onStale wait over a whole run: nothing is dropped, nothing is too old, and no step waits for ever. And packing ahead
over a whole run: it drops no more than packing when the trainer asks.

Rollouts finish groups in any order, and lose some leases. docs/design/algorithms.md#s-2-3: by admission and the lease
rule a valid batch always exists, so once everything in flight has finished the next step must close.
"""

import heapq
import pathlib
import random
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rljob_api import enums
from rljob_testing.sections import with_spec
from rljob_workers.coordinator.ledger import groups, leases
from rljob_workers.coordinator.policy import staleness

STEPS = 6


def finish(bench: Any, rollout: str, open_leases: list[tuple[Any, int]], place: int) -> None:
    lease, version = open_leases.pop(place % len(open_leases))
    assert bench.submit(rollout, lease, versions=version).outcome == enums.TrajectoryOutcome.ACCEPTED


def take(bench: Any, rollout: str, open_leases: list[tuple[Any, int]], version: int) -> None:
    open_leases += [(lease, version) for lease in bench.lease(rollout, 99, version)]


def drive(bench: Any, choices: Callable[[int], int]) -> None:
    """Train `STEPS` steps; `choices(n)` picks below n who finishes next and whether a lease is lost."""
    rollout, trainer, version = bench.rollout(), bench.trainer(), 0
    open_leases: list[tuple[Any, int]] = []
    for step in range(1, STEPS + 1):
        take(bench, rollout, open_leases, version)
        while bench.pack() is None:
            assert open_leases, f"step {step} waits with nothing in flight"
            if choices(4) == 0:
                lost, _ = open_leases.pop(choices(len(open_leases)))
                leases.release(bench.ledger, token=rollout, lease_id=lost.lease_id, reason="drain", now=bench.now)
                take(bench, rollout, open_leases, version)
            else:
                finish(bench, rollout, open_leases, choices(len(open_leases)))
        bench.commit(trainer, step)
        version = bench.publish(trainer, step)


@pytest.mark.covers("algorithms 2.3")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(eta=st.integers(1, 3), groups=st.integers(1, 3), seed=st.integers(0, 1 << 32))
def test_under_wait_every_step_closes_and_nothing_is_dropped(
    make_bench: Callable[..., Any], eta: int, groups: int, seed: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bench = make_bench(
            path=pathlib.Path(folder) / "ledger.sqlite", prompts_per_step=groups, max_off_policy_steps=eta,
            on_stale="Wait", max_infra_attempts_per_prompt=1000,
        )  # fmt: skip
        try:
            drive(bench, random.Random(seed).randrange)
            counters = bench.ledger.counters()
            assert [name for name in counters if name.startswith("dropped:")] == []
            ages = bench.ledger.db.all("SELECT step - 1 - min_step AS age FROM groups WHERE step IS NOT NULL")
            assert len(ages) == STEPS * groups
            assert max(row["age"] for row in ages) <= eta
        finally:
            bench.ledger.close()


@pytest.mark.covers("algorithms 2.3")
def test_a_lower_bound_drops_once_what_no_longer_fits_and_the_run_goes_on(make_bench: Callable[..., Any]) -> None:
    """eta 3, four groups of version 0. After two steps eta is 1: the other two are too old, their prompts come next."""
    bench = make_bench(prompts_per_step=1, max_off_policy_steps=3, on_stale="Wait")
    rollout, trainer = bench.rollout(), bench.trainer()
    leases = bench.lease(rollout, 4)
    for lease in leases:
        bench.submit(rollout, lease)
    for step in (1, 2):
        assert bench.pack() == step
        bench.commit(trainer, step)
        version = bench.publish(trainer, step)
    bench.config = with_spec(bench.config, max_off_policy_steps=1)
    bench.reopen()
    for _ in range(2):
        groups.drop_stale(bench.ledger, now=bench.now)
        assert bench.ledger.counters()["dropped:stale"] == 2
    again = bench.lease(rollout, 2, version)
    assert [lease.ref for lease in again] == [lease.ref for lease in leases[2:]]
    bench.submit(rollout, again[0], versions=version)
    assert bench.pack() == 3


def share_dropped(bench: Any, *, train_s: float, steps: int, seed: int) -> float:
    """Play a run in events of its own time: answers of log-normal lengths, a trainer that takes `train_s` a step."""
    rng, rollout, trainer = random.Random(seed), bench.rollout(), bench.trainer()
    events: list[tuple[float, int, Any, int]] = []
    now, version, number, training = 0.0, 0, 0, False
    while groups.committed(bench.ledger) < steps:
        for lease in bench.lease(rollout, 99, version):
            number += 1
            heapq.heappush(events, (now + rng.lognormvariate(0, 1), number, lease, version))
        now, _, lease, sampled_by = heapq.heappop(events)
        if lease is None:
            training = False
            bench.commit(trainer, groups.committed(bench.ledger) + 1)
            version = bench.publish(trainer, groups.committed(bench.ledger))
        else:
            bench.submit(rollout, lease, versions=sampled_by)
        while bench.pack() is not None:
            pass
        if not training and groups.recorded(bench.ledger) > groups.committed(bench.ledger):
            training = True
            heapq.heappush(events, (now + train_s, 0, None, 0))
    counters = bench.ledger.counters()
    return float(counters.get("dropped:stale", 0) / counters["leases_granted"])


@pytest.mark.parametrize(("eta", "train_s"), [(1, 1.0), (2, 1.0), (2, 3.0), (4, 1.0)])
def test_packing_a_step_ahead_drops_no_more_groups(
    make_bench: Callable[..., Any], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, eta: int, train_s: float
) -> None:
    def share(name: str) -> float:
        bench = make_bench(
            path=tmp_path / name, prompts_per_step=4, max_off_policy_steps=eta, on_stale="Drop", lease_s=1e9
        )
        bench.ledger.db.all("PRAGMA synchronous = OFF")
        found = share_dropped(bench, train_s=train_s, steps=40, seed=1)
        bench.ledger.close()
        return found

    ahead = share("ahead.sqlite")
    monkeypatch.setattr(staleness, "may_close_ahead", lambda *_, **__: False)
    assert ahead <= share("asked.sqlite") + 0.02
    monkeypatch.setattr(staleness, "may_close_ahead", lambda *_, **__: True)
    careless = share("careless.sqlite")
    assert ahead <= careless
    if (eta, train_s) == (2, 3.0):
        assert ahead < careless / 2, "without the rule it would"
