"""What the bench of kills draws and says of the kills that it made, and that what it looks for would show."""

import json
import pathlib
import random
import sqlite3
from collections import Counter

import pytest
import yaml
from tests.bench import kills, runner

from rljob_api import types
from rljob_testing import witnessed_rollout, witnessed_teacher
from rljob_workers.coordinator.ledger import database
from rljob_workers.rollout.engines import base
from rljob_workers.rollout.engines.vllm import engine
from rljob_workers.rpc import work


def kill(role: str, state: str, *, burst: int = 1, what: str = "role") -> kills.Kill:
    return kills.Kill(burst=burst, nth=1, at=0.0, role=role, what=what, state=state)


def recovery(recovered_s: float, *roles: str, num_kills: int = 1) -> kills.Recovery:
    return kills.Recovery(burst=1, kills=num_kills, roles=roles, ready_s=1.0, recovered_s=recovered_s, steps=3)


@pytest.mark.parametrize(
    ("engine_type", "witness"),
    [("fake", witnessed_rollout.WitnessedFake), ("vllm", witnessed_rollout.WitnessedVllm)],
)
def test_the_engine_that_a_rollout_makes_has_the_witness(
    engine_type: str, witness: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the test restores at its end.
    monkeypatch.setattr(engine, "REGISTRATION", engine.REGISTRATION)
    monkeypatch.setattr(work, "WorkClient", work.WorkClient)
    witnessed_rollout.install(engine_type)
    assert base.find("vllm").make is witness
    assert work.WorkClient is witnessed_rollout.WitnessedClient


def test_every_other_burst_is_one_kill_and_each_role_has_its_turn() -> None:
    plans = [kills.plan(number, "fake", random.Random(number), most=1000) for number in range(1, 65)]
    alone, many = plans[::2], plans[1::2]
    assert Counter(strikes[0].roles[0] for strikes in alone) == dict.fromkeys(kills.ROLES, 8)
    assert all(len(strikes) == len(strikes[0].roles) == 1 for strikes in alone)
    assert all(10 <= len(strikes) <= 40 for strikes in many)
    assert {len(strikes[0].roles) for strikes in many} == {1, 2, 3, 4}
    assert all({*strike.roles} == {*strikes[0].roles} for strikes in many for strike in strikes)
    for strikes in many:
        times = [strike.after_s for strike in strikes]
        assert times == sorted(times)
        assert times[-1] <= 30.0


def test_no_burst_is_larger_than_what_is_still_to_be_killed() -> None:
    assert [len(kills.plan(2, "fake", random.Random(0), most=most)) for most in (1, 5)] == [1, 5]


def test_summary_tells_recoveries_of_single_kills_by_role_and_those_of_bursts_apart() -> None:
    found = kills.Result(
        kills=[kill("trainer", "ready"), kill("trainer", "starting", what="guard"), kill("verifier", "ready")],
        recoveries=[
            recovery(10.0, "trainer"),
            recovery(30.0, "trainer"),
            recovery(2.0, "verifier"),
            recovery(60.0, "trainer", num_kills=2),
        ],
    )
    rows = [line.split() for line in kills.summary(found)]
    assert ["trainer", "2", "1", "1", "role", "1,", "guard", "1"] in rows
    assert ["all", "3", "1", "2"] in rows
    recovered = {row[0]: (row[1], row[-3:]) for row in rows[rows.index(["all", "3", "1", "2"]) + 2 :]}
    assert recovered == {
        "trainer": ("2", ["20.0", "28.0", "30.0"]),
        "verifier": ("1", ["2.0", "2.0", "2.0"]),
        "bursts": ("1", ["60.0", "60.0", "60.0"]),
        "all": ("4", ["20.0", "51.0", "60.0"]),
    }


def test_rows_have_bars() -> None:
    assert {"KL1", "KL2"} <= yaml.safe_load(runner.THRESHOLDS.read_text(encoding="utf-8")).keys()


@pytest.fixture
def bench(tmp_path: pathlib.Path) -> kills.Bench:
    """Return the bench of a run that made a ledger: one accepted group, one version."""
    (tmp_path / "job.yaml").write_text("")
    made = kills.Bench(tmp_path, "fake")
    made.run_dir.state.mkdir(parents=True)
    database.Database(made.run_dir.state / "ledger.sqlite").close()
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
        ({"trained": 2, "groups": ["g1"], "digest": "b"}, "group g1 was trained in steps 1, 2"),
        ({"trained": 1, "groups": ["g1"], "digest": "other"}, "step 1 was made again of another batch"),
    ],
)
def test_what_the_witnesses_saw_and_the_ledger_does_not_know_is_told(
    bench: kills.Bench, seen: dict[str, object], said: str
) -> None:
    trained = {"trained": 1, "groups": ["g1"], "digest": "a"}
    right = [
        {"acknowledged": "g1", "attempt": 1, "outcome": "accepted"},
        {"served": 1, "state_hash": "right"},
        trained,
        trained,
    ]
    for lines, expected in ((right, False), ([*right, seen], True)):
        bench.witness.write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert (said in bench.problems()) is expected


@pytest.mark.parametrize("missing", ["acknowledged", "served", "trained"])
def test_a_witness_that_saw_nothing_proves_nothing(bench: kills.Bench, missing: str) -> None:
    right: dict[str, dict[str, object]] = {
        "acknowledged": {"acknowledged": "g1", "attempt": 1, "outcome": "accepted"},
        "served": {"served": 1, "state_hash": "right"},
        "trained": {"trained": 1, "groups": ["g1"], "digest": "a"},
    }
    for lines, expected in ((right, False), ({name: line for name, line in right.items() if name != missing}, True)):
        bench.witness.write_text("".join(json.dumps(line) + "\n" for line in lines.values()))
        assert any("the witnesses saw nothing" in problem for problem in bench.problems()) is expected


def test_steps_are_counted_once_their_line_is_whole(bench: kills.Bench) -> None:
    history = bench.run_dir.history
    history.write_bytes(b'{"seq":1,"kind":"step"}\n{"seq":2,"kind":"st')
    assert bench.num_steps() == 1
    # The coordinator that is started again cuts the torn line off.
    history.write_bytes(b'{"seq":1,"kind":"step"}\n{"seq":2,"kind":"version"}\n{"seq":3,"kind":"step"}\n')
    assert bench.num_steps() == 2


def test_kills_of_one_role_are_of_it_alone() -> None:
    plans = [kills.plan(number, "fake", random.Random(number), most=40, of=("trainer",)) for number in range(1, 9)]
    assert {role for strikes in plans for strike in strikes for role in strike.roles} == {"trainer"}
    alone = [kills.plan(number, "fake", random.Random(number), most=40, alone=True) for number in range(1, 9)]
    assert [len(strikes) for strikes in alone] == [1] * 8


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ({"taught": 8, "sampled": 8, "distance": 1e-5}, []),
        ({"taught": 7, "sampled": 8, "distance": float("inf")}, ["step 3: the teacher scored 7 of 8 tokens"]),
        ({"taught": 0, "sampled": 0, "distance": 0.0}, ["step 3: the teacher scored 0 of 0 tokens"]),
        (
            {"taught": 8, "sampled": 8, "distance": 0.5},
            ["step 3: the teacher is 0.5 nats from the model that is named"],
        ),
    ],
)
def test_a_step_that_the_named_teacher_did_not_score_whole_is_told(seen: dict[str, object], said: list[str]) -> None:
    assert kills.taught_wrongly([{"trained": 3, **seen}]) == said


def test_a_token_sees_its_segment_up_to_itself_and_all_segments_above() -> None:
    segments = [
        types.Segment(start=0, end=3),
        types.Segment(start=3, end=5, parent=0),
        types.Segment(start=5, end=8, parent=1),
    ]
    segments.append(types.Segment(start=8, end=10, parent=0))
    assert witnessed_teacher.path(segments, 6) == [0, 1, 2, 3, 4, 5, 6]
    assert witnessed_teacher.path(segments, 9) == [0, 1, 2, 8, 9]
