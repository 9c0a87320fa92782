"""What a ledger lets go of, when, and that everything which was promised still holds and can be proven after it."""

import json
import pathlib
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from rljob_api import enums, errors
from rljob_api.wire import codec
from rljob_testing import makers
from rljob_workers.coordinator.ledger import (
    audit,
    checkpoints,
    database,
    evaluations,
    group_facts,
    groups,
    leases,
    queries,
    retention,
    steps,
    versions,
)

Make = Callable[..., Any]
TABLES = ("groups", "leases", "answers", "payloads", "batch_parts")


def prune(bench: Any, *, history_seq: int = 0, most: int = retention.SLICE_ROWS) -> int:
    """Prune until there is no more; return how many slices that took."""
    slices = 1
    while retention.prune(bench.ledger, history_seq=history_seq, now=bench.now, most=most):
        slices += 1
    return slices


def checkpoint(bench: Any, trainer: str, step: int) -> None:
    checkpoints.commit_checkpoint(
        bench.ledger, token=trainer, step=step, uri=f"c{step}", seconds=1.0, final=False, now=bench.now
    )


def sizes(bench: Any) -> dict[str, int]:
    return {table: bench.ledger.number(f"SELECT COUNT(*) AS n FROM {table}") for table in TABLES}


def trained(bench: Any, steps: int) -> tuple[str, str, int]:
    """Train some steps; return the tokens of rollout and trainer, and the newest version."""
    rollout, trainer = bench.rollout(), bench.trainer()
    serving = 0
    for _ in range(steps):
        serving = bench.step(rollout, trainer, serving=serving)
    return rollout, trainer, serving


def test_nothing_goes_before_a_checkpoint_covers_it(make_bench: Make) -> None:
    bench = make_bench()
    trained(bench, 3)
    before = sizes(bench)
    prune(bench)
    assert sizes(bench) == before


@pytest.mark.covers("algorithms 10")
def test_what_a_checkpoint_covers_goes_and_everything_is_still_proven(make_bench: Make) -> None:
    bench = make_bench()
    _, trainer, serving = trained(bench, 3)
    counts, counters = groups.counts(bench.ledger), bench.ledger.counters()
    checkpoint(bench, trainer, 2)
    prune(bench)
    # Two are of step 3, two wait for their lease.
    assert sizes(bench) == {"groups": 4, "leases": 2, "answers": 2, "payloads": 2, "batch_parts": 1}
    assert groups.counts(bench.ledger) == counts
    assert bench.ledger.counters() == counters | {"checkpoints": 1}
    assert audit.audit(bench.ledger.db, max_off_policy_steps=1) == []
    assert [member.number for member in retention.of_step(bench.ledger.db, 2)] == [3, 4]
    again = bench.trainer(attempt=2, resume_step=2)
    assert (
        steps.decide(bench.ledger, token=again, step=3, rank=0, world_size=1, stop=False).kind is enums.BatchKind.BATCH
    )
    bench.reopen()
    assert groups.counts(bench.ledger).recorded == 3
    assert serving == 3


def test_a_slice_is_bounded_by_rows_and_by_the_bytes_that_go_with_them(
    make_bench: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench(prompts_per_step=4)
    _, trainer, _ = trained(bench, 2)
    checkpoint(bench, trainer, 2)
    assert retention.prune(bench.ledger, history_seq=0, now=bench.now, most=3)
    assert sizes(bench)["groups"] == 5, "a step may be pruned in parts"
    assert audit.audit(bench.ledger.db, max_off_policy_steps=1) == []
    monkeypatch.setattr(retention, "SLICE_BYTES", 1)
    assert retention.prune(bench.ledger, history_seq=0, now=bench.now)
    assert sizes(bench)["groups"] == 4, "one group at least, however large its payload is"
    prune(bench)
    assert sizes(bench) == dict.fromkeys(TABLES, 0)


def test_a_late_repetition_of_an_accepted_group_gets_its_answer_and_any_other_is_no_new_group(
    make_bench: Make,
) -> None:
    bench = make_bench(prompts_per_step=1)
    rollout, trainer = bench.rollout(), bench.trainer()
    (lost,) = bench.lease(rollout)
    leases.release(bench.ledger, token=rollout, lease_id=lost.lease_id, reason="engine", now=bench.now)
    (lease,) = bench.lease(rollout)
    assert bench.submit(rollout, lease).outcome == "accepted"
    bench.commit(trainer, bench.pack())
    checkpoint(bench, trainer, 1)
    prune(bench)
    again = bench.submit(rollout, lease)
    assert (again.outcome, again.duplicate) == ("accepted", True)
    late = bench.submit(rollout, lost)
    assert (late.outcome, late.duplicate) == ("duplicate", True)
    assert sizes(bench)["answers"] == 0
    assert audit.audit(bench.ledger.db, max_off_policy_steps=1) == []


@pytest.mark.covers("algorithms 10")
def test_a_trainer_behind_a_pruned_checkpoint_gets_the_same_prompts_in_the_same_order(make_bench: Make) -> None:
    bench = make_bench(prompts_per_step=2, max_off_policy_steps=0)
    rollout, trainer, _ = trained(bench, 3)
    drawn = [use.ref.prompt_id for use in audit.first_uses(bench.ledger.db)]
    checkpoint(bench, trainer, 3)
    prune(bench)
    assert sizes(bench)["groups"] == 0
    again = bench.trainer(attempt=2, resume_step=1)
    assert (groups.committed(bench.ledger), groups.recorded(bench.ledger)) == (1, 1)
    serving = bench.publish(again, 1, attempt=2)
    redrawn = []
    for _ in range(2):
        leases = bench.lease(rollout, 2, serving=serving)
        redrawn += [lease.ref.prompt_id for lease in leases]
        for lease in leases:
            bench.submit(rollout, lease, versions=serving)
        step = bench.pack()
        bench.commit(again, step)
        serving = bench.publish(again, step, attempt=2)
    assert redrawn == drawn[2:]
    assert bench.ledger.counters()["dropped:rewound"] == 4
    assert audit.audit(bench.ledger.db, max_off_policy_steps=0) == []


def test_dropped_groups_go_with_the_step_that_did_not_take_them(make_bench: Make) -> None:
    bench = make_bench(prompts_per_step=1, max_infra_attempts_per_prompt=1)
    rollout, trainer = bench.rollout(), bench.trainer()
    (lease,) = bench.lease(rollout)
    leases.release(bench.ledger, token=rollout, lease_id=lease.lease_id, reason="engine", now=bench.now)
    assert bench.ledger.number("SELECT COUNT(*) AS n FROM groups WHERE state = 'dropped'") == 1
    bench.step(rollout, trainer)
    checkpoint(bench, trainer, 1)
    prune(bench)
    assert bench.ledger.number("SELECT COUNT(*) AS n FROM groups WHERE state = 'dropped'") == 0
    reader = group_facts.Reader(bench.ledger.db)
    assert reader.group(lease.group_id)["drop_reason"] == "infra_exhausted"
    assert audit.audit(bench.ledger.db, max_off_policy_steps=1) == []


def test_groups_of_an_evaluation_go_once_it_is_done(make_bench: Make) -> None:
    bench = make_bench()
    rollout = bench.rollout()
    versions.begin_evaluation(bench.ledger, step=0, version=0, now=bench.now)
    evaluations.open_evaluation(bench.ledger, step=0, refs=bench.order.order(0)[:2], sizes={"train": 1}, now=bench.now)
    for lease in bench.lease(rollout, 2):
        bench.submit(rollout, lease, rewards=(1.0,))
    prune(bench)
    assert [item.payload is not None for item in evaluations.evaluation_items(bench.ledger, 0)] == [True, True]
    evaluations.finish_evaluation(bench.ledger, step=0, results={}, metrics={}, now=bench.now)
    prune(bench)
    assert sizes(bench) == dict.fromkeys(TABLES, 0)
    facts = list(group_facts.Reader(bench.ledger.db).step(0))
    assert [(fact["group"], fact["state"], fact["step"]) for fact in facts] == [
        ("e00000001", "trained", 0),
        ("e00000002", "trained", 0),
    ]
    assert audit.audit(bench.ledger.db, max_off_policy_steps=1) == []


def test_facts_of_a_step_are_the_same_but_for_what_its_batch_told(make_bench: Make) -> None:
    bench = make_bench()
    _, trainer, _ = trained(bench, 2)
    bench.ledger.db.change("DELETE FROM batch_parts")
    reader = group_facts.Reader(bench.ledger.db)
    before = list(reader.step(1))
    checkpoint(bench, trainer, 2)
    retention.prune(bench.ledger, history_seq=0, now=bench.now, most=1)
    assert list(reader.step(1)) == before, "half pruned"
    prune(bench)
    assert list(reader.step(1)) == before


def test_rows_of_old_steps_go_but_for_those_that_status_looks_at(make_bench: Make) -> None:
    bench = make_bench(prompts_per_step=1, num_prompts=100)
    _, trainer, _ = trained(bench, retention.KEPT_STEPS + 3)
    first = queries.snapshot(bench.ledger).first_step_at
    checkpoint(bench, trainer, retention.KEPT_STEPS + 3)
    prune(bench)
    assert bench.ledger.number("SELECT MIN(step) AS n FROM steps") == 4
    assert bench.ledger.number("SELECT COUNT(*) AS n FROM steps") == retention.KEPT_STEPS
    assert queries.snapshot(bench.ledger).first_step_at == first > 0
    assert groups.committed(bench.ledger) == retention.KEPT_STEPS + 3


def test_history_lines_go_once_they_are_on_the_disk_but_for_the_newest(
    make_bench: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "KEPT_LINES", 2)
    bench = make_bench()
    for number in range(6):
        bench.ledger.note({"kind": "restart", "number": number})
    prune(bench)
    assert len(queries.history_after(bench.ledger, 0)) == 6
    prune(bench, history_seq=5, most=1)
    assert [json.loads(line)["number"] for _, line in queries.history_after(bench.ledger, 0)] == [2, 3, 4, 5]


def test_a_process_that_was_replaced_long_ago_is_forgotten(make_bench: Make) -> None:
    bench = make_bench()
    old = bench.rollout()
    bench.rollout()
    prune(bench)
    with pytest.raises(errors.FencedError, match="was replaced"):
        bench.lease(old)
    bench.now += retention.SESSION_S + 1
    prune(bench)
    with pytest.raises(errors.FencedError, match="register again"):
        bench.lease(old)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        pytest.param("DELETE FROM pruned WHERE step = 1", "number 1 is in 0 places", id="a slice is lost"),
        pytest.param(
            "INSERT INTO pruned SELECT 99, fate, step, num_groups, num_accepted, first_group, last_group, members"
            " FROM pruned WHERE step = 1",
            "number 1 is in 2 places",
            id="a slice is there twice",
        ),
        pytest.param("UPDATE pruned SET step = 2 WHERE step = 1", "step 2 holds", id="in another step"),
        pytest.param("UPDATE pruned SET step = 9 WHERE step = 2", "of age 7 in step 9", id="too old for its step"),
        pytest.param(
            "UPDATE counters SET value = value + 1 WHERE name = 'groups:accepted'", "were counted", id="one is missing"
        ),
    ],
)
def test_damage_to_what_was_pruned_is_found(make_bench: Make, damage: str, sentence: str) -> None:
    bench = make_bench()
    _, trainer, _ = trained(bench, 2)
    checkpoint(bench, trainer, 2)
    prune(bench)
    bench.ledger.db.change(damage)
    assert any(sentence in text for text in audit.audit(bench.ledger.db, max_off_policy_steps=1))


@pytest.mark.covers("workflows 6.2")
@pytest.mark.parametrize("schema", [1, 2])
def test_a_ledger_of_an_older_schema_goes_on(make_bench: Make, tmp_path: pathlib.Path, schema: int) -> None:
    """A run outlives an update of the coordinator, in the middle of a step."""
    old = sqlite3.connect(tmp_path / "ledger.sqlite")
    old.executescript(pathlib.Path(__file__).with_name("ledger_schema_2.sql").read_text(encoding="utf-8"))
    if schema == 1:
        old.execute("DROP TABLE scores")
    columns = (
        "group_id, kind, state, source, prompt_index, prompt_id, epoch, position, copy, queue_key, group_size, attempt,"
        " lease_order, granted_step, min_step, max_step, finished_step, num_rows, num_failures, created_at, leased_at,"
        " generate_started_at, generate_finished_at, verify_s, step, step_position"
    )
    row = "'train', ?, 'train', 0, 'p0', 0, ?, 0, ?, 2, 0, ?, 0, 0, 0, 0, 2, 0, 1, 1, 1, 1, 1, ?, ?"
    for number, (state, step) in enumerate([("trained", 1), ("trained", 1), ("submitted", None)]):
        group_id = f"g{number + 1:08d}"
        place = None if step is None else number
        values = (group_id, state, number, number + 1, number + 1, step, place)
        old.execute(f"INSERT INTO groups ({columns}) VALUES (?, {row})", values)
        old.execute("INSERT INTO answers VALUES (?, 0, 'accepted', '', 1)", (group_id,))
        payload = makers.make_group(group_id=group_id)
        old.execute("INSERT INTO payloads VALUES (?, 0, ?)", (group_id, codec.encode(payload)))
    old.execute("INSERT INTO steps VALUES (1, 'trained', 1, '[[1, 1]]', '{\"reward_mean\": 1}', 2, 1, 77.5, 1, '{}')")
    old.executemany(
        "INSERT INTO counters VALUES (?, 3)", [("groups_opened",), ("groups:accepted",), ("leases_granted",)]
    )
    old.executemany("INSERT INTO syncs VALUES ('rollout-0', ?, ?)", [(1, 5.0), (2, 9.0)])
    old.executemany("INSERT INTO meta VALUES (?, ?)", [("cursor", "0:3"), ("created_at", "1.0")])
    old.execute(f"PRAGMA user_version = {schema}")
    old.commit()
    old.close()
    bench = make_bench(path=tmp_path / "ledger.sqlite")
    assert bench.ledger.db.one("PRAGMA user_version")["user_version"] == database.SCHEMA_VERSION
    assert groups.counts(bench.ledger).submitted == 1
    assert queries.snapshot(bench.ledger).first_step_at == 77.5
    assert (bench.ledger.order_version(), make_bench(path=tmp_path / "new.sqlite").ledger.order_version()) == (1, 2)
    assert audit.audit(bench.ledger.db, max_off_policy_steps=1) == []
    rollout, trainer = bench.rollout(), bench.trainer(resume_step=1)
    checkpoint(bench, trainer, 1)
    prune(bench)
    assert sizes(bench)["groups"] == 1
    (lease,) = bench.lease(rollout)
    assert bench.submit(rollout, lease).outcome == "accepted"
    assert bench.pack() == 2
    assert audit.audit(bench.ledger.db, max_off_policy_steps=1) == []
