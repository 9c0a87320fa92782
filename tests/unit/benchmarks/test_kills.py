"""What the bench of kills says of the kills that it made, and that what it looks for would show."""

import json
import pathlib
import sqlite3

import pytest
import yaml
from tests.bench import kills, runner

from rljob_workers.coordinator.ledger import database


def kill(role: str, recovered_s: float) -> kills.Kill:
    return kills.Kill(role=role, what="role", ready_s=1.0, recovered_s=recovered_s, steps=3)


def test_summary_has_a_line_per_role_and_one_for_all() -> None:
    lines = kills.summary([kill("trainer", 10.0), kill("trainer", 30.0), kill("verifier", 2.0)])
    assert [line.split()[:2] for line in lines[1:]] == [["verifier", "1"], ["trainer", "2"], ["all", "3"]]
    assert lines[2].split()[-3:] == ["20.0", "28.0", "30.0"]


def test_rows_have_bars() -> None:
    assert {"KL1", "KL2"} <= yaml.safe_load(runner.THRESHOLDS.read_text(encoding="utf-8")).keys()


@pytest.fixture
def bench(tmp_path: pathlib.Path) -> kills.Bench:
    """Return the bench of a run that made a ledger: one accepted group, one version."""
    (tmp_path / "job.yaml").write_text("")
    made = kills.Bench(tmp_path, "fake")
    made.run_dir.state.mkdir(parents=True)
    database.SqliteDatabase(made.run_dir.state / "ledger.sqlite").close()
    with sqlite3.connect(made.run_dir.state / "ledger.sqlite") as connection:
        connection.execute("INSERT INTO answers VALUES ('g1', 1, 'accepted', '', 0)")
        connection.execute(
            "INSERT INTO versions (version, step, attempt, state, state_hash, artifact, created_at)"
            " VALUES (1, 1, 1, 'live', 'right', '', 0)"
        )
    return made


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ({"acknowledged": "g2", "attempt": 1, "outcome": "accepted"}, "group g2 was acknowledged and is lost"),
        ({"served": 1, "state_hash": "wrong"}, "version 1 was served half applied"),
    ],
)
def test_what_a_rollout_saw_and_the_ledger_does_not_know_is_told(
    bench: kills.Bench, seen: dict[str, object], said: str
) -> None:
    right = [{"acknowledged": "g1", "attempt": 1, "outcome": "accepted"}, {"served": 1, "state_hash": "right"}]
    for lines, expected in ((right, False), ([*right, seen], True)):
        bench.witness.write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert (said in bench.problems()) is expected


def test_a_witness_that_saw_nothing_proves_nothing(bench: kills.Bench) -> None:
    bench.witness.write_text("")
    assert any("the witness saw nothing" in problem for problem in bench.problems())
