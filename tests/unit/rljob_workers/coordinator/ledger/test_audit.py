"""The checker must find what it is for: each promise broken by hand in an otherwise sound ledger."""

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from rljob_api.wire import codec
from rljob_testing import makers
from rljob_workers.coordinator.ledger import audit

Make = Callable[..., Any]


@pytest.fixture
def sound(make_bench: Make) -> Any:
    """Two trained steps, one group submitted, one leased."""
    bench = make_bench(prompts_per_step=2)
    rollout, trainer = bench.rollout(), bench.trainer()
    for serving in range(2):
        bench.step(rollout, trainer, serving=serving)
    submitted, _ = bench.lease(rollout, 2, serving=2)
    bench.submit(rollout, submitted, versions=2)
    return bench


def violations(bench: Any, bound: int = 1) -> list[str]:
    return audit.audit(bench.ledger.db, max_off_policy_steps=bound)


def test_a_sound_ledger_has_no_violation(sound: Any) -> None:
    assert violations(sound) == []


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        pytest.param("DELETE FROM groups WHERE state = 'submitted'", "is not in the ledger", id="a lost group"),
        pytest.param(
            "UPDATE groups SET state = 'queued' WHERE state = 'submitted'", "is queued at attempt", id="a"
            " forgotten group"
        ),
        pytest.param(
            "UPDATE groups SET state = 'dropped' WHERE state = 'submitted'", "without a reason", id="dropped for"
            " no reason"
        ),
        pytest.param(
            "UPDATE answers SET outcome = 'stale' WHERE group_id = 'g00000001'", "although no", id="used unasked"
        ),
        pytest.param("UPDATE groups SET step = 2 WHERE step = 1 AND step_position = 1", "1 groups, 2 were", id="moved"),
        pytest.param("DELETE FROM steps WHERE step = 1", "which is not recorded", id="a step is gone"),
        pytest.param("UPDATE steps SET state = 'packed' WHERE step = 1", "follows one that is not", id="out of order"),
        pytest.param("UPDATE groups SET num_rows = 1 WHERE state = 'submitted'", "1 were recorded", id="a false size"),
        pytest.param("UPDATE groups SET position = 40 WHERE group_id = 'g00000002'", "right after", id="another order"),
        pytest.param(
            "UPDATE groups SET lease_order = 99 WHERE group_id = 'g00000001'", "leased before", id="queue jumped"
        ),
        pytest.param("UPDATE versions SET version = 9 WHERE version = 2", "gaps", id="an id is missing"),
        pytest.param("UPDATE leases SET state = 'done' WHERE state = 'open'", "0 open leases", id="leased by nobody"),
        pytest.param("UPDATE leases SET floor_step = 7", "its worker begins with", id="below the floor"),
    ],
)  # fmt: skip
def test_damage_is_found(sound: Any, damage: str, sentence: str) -> None:
    sound.ledger.db.change(damage)
    assert any(sentence in text for text in violations(sound))


def test_a_consumed_group_over_the_bound_is_found(sound: Any) -> None:
    sound.ledger.db.change("UPDATE groups SET min_step = 0 WHERE step = 2")
    assert any("is trained on tokens of age 1 in step 2, the bound is 0" in text for text in violations(sound, bound=0))


def test_an_infrastructure_failure_as_a_row_is_found(sound: Any) -> None:
    row = sound.ledger.db.one("SELECT group_id FROM groups WHERE state = 'submitted'")
    group = makers.make_group(group_id=row["group_id"], versions=2)
    failed = dataclasses.replace(group.trajectories[0], verdict=makers.make_verdict(None))
    data = codec.encode(dataclasses.replace(group, trajectories=(failed, group.trajectories[1])))
    sound.ledger.db.change("UPDATE payloads SET data = ? WHERE group_id = ?", data, row["group_id"])
    assert any("infrastructure failure as a scored row" in text for text in violations(sound))


def test_the_command_prints_violations_and_exits_1(sound: Any) -> None:
    sound.ledger.set_meta("max_off_policy_steps", "1")
    command = [sys.executable, "-m", "rljob_workers.coordinator.ledger.audit", str(sound.path.parent)]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    sound.ledger.db.change("UPDATE leases SET floor_step = 7")
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "its worker begins with" in ended.stdout
