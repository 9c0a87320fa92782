"""What became of a group, as people are reported. Ledgers are made by the same transitions as in a run."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from rljob_api import types
from rljob_api.wire import codec
from rljob_workers.coordinator.batching import packing
from rljob_workers.coordinator.ledger import group_facts
from rljob_workers.local.rundir import group_facts as asked

Make = Callable[..., Any]


def micro_batch(group: str, *, rewards: types.Floats = types.NO_FLOATS) -> bytes:
    """Two rows of one group with two sampled tokens each: advantages 0.5 and -1.5."""
    header = [
        types.RowHeader(group_id=types.GroupId(group), sample_index=index, num_tokens=2, row=index, raw_reward=0.0,
                        shaped_reward=0.0)
        for index in (0, 3)
    ]  # fmt: skip
    return codec.encode_micro_batch(
        types.MicroBatch(
            update=0,
            tokens=types.ints([1, 2, 3, 4, 5, 6]),
            position_ids=types.ints([0, 1, 2, 0, 1, 2]),
            segments=(types.Segment(start=0, end=3), types.Segment(start=3, end=6)),
            target_index=types.ints([1, 2, 4, 5]),
            predictor_index=types.ints([0, 1, 3, 4]),
            logprobs=types.floats([-1.0] * 4),
            advantages=types.floats([0.5, 0.5, -1.5, -1.5]),
            version_steps=types.ints([0] * 4),
            row_index=types.ints([0, 0, 1, 1]),
            rows=header,
            rewards=rewards,
            turn_ids=types.ints([0] * len(rewards)),
        )
    )


@pytest.fixture
def bench(make_bench: Make) -> Any:
    """Step 1 is trained; of step 2 one group is submitted, one leased."""
    bench = make_bench(prompts_per_step=2)
    rollout, trainer = bench.rollout(), bench.trainer()
    bench.step(rollout, trainer)
    submitted, _ = bench.lease(rollout, 2, serving=1)
    bench.submit(rollout, submitted, versions=1)
    return bench


def with_batch(bench: Any, data: bytes) -> group_facts.Reader:
    bench.ledger.db.change("DELETE FROM batch_parts")
    bench.ledger.db.change("INSERT INTO batch_parts (step, rank, seq, data) VALUES (1, 0, 0, ?)", data)
    return group_facts.Reader(bench.ledger.db)


def test_group_of_a_step_has_its_step_age_and_the_advantage_of_each_sample(bench: Any) -> None:
    reader = with_batch(bench, micro_batch("g00000001"))
    first, second = reader.step(1)
    assert (first["group"], first["state"], first["step"], first["age"]) == ("g00000001", "trained", 1, 0)
    assert first["advantages"] == {"0": [0.5], "3": [-1.5]}
    # Its rows are in no micro-batch: they add nothing to the loss.
    assert second["advantages"] == {}


def test_advantages_that_were_packed_are_read_back_over_ranks_and_epochs(bench: Any) -> None:
    wanted = {0: 0.5, 1: -1.5, 2: 0.0, 3: 1.0}
    rows = [
        types.TrainSample(
            group_id=types.GroupId("g00000002"), sample_index=sample, row=sample, tokens=types.ints([1, 2, 3]),
            loss_mask=types.mask([0, 1, 1]), logprobs=types.floats([0.0, -1.0, -1.0]), version_steps=types.ints([0, 0]),
            advantages=types.floats([advantage] * 2), raw_reward=0.0, shaped_reward=0.0,
        )
        for sample, advantage in wanted.items()
    ]  # fmt: skip
    shape = packing.Shape(seed=1, minibatches=2, epochs=2, world_size=2, max_tokens=8)
    bench.ledger.db.change("DELETE FROM batch_parts")
    bench.ledger.db.many(
        "INSERT INTO batch_parts (step, rank, seq, data) VALUES (1, ?, ?, ?)",
        [
            (rank, seq, codec.encode_micro_batch(part))
            for rank, parts in enumerate(packing.pack(rows, step=1, shape=shape).micro_batches)
            for seq, part in enumerate(parts)
        ],
    )
    facts = group_facts.Reader(bench.ledger.db).group("g00000002")
    told = asked.Facts.model_validate(facts)
    assert {sample: told.advantage(sample) for sample in wanted} == wanted


def test_advantages_are_unknown_once_a_checkpoint_let_the_batch_go(bench: Any) -> None:
    bench.ledger.db.change("DELETE FROM batch_parts")
    assert group_facts.Reader(bench.ledger.db).group("g00000001")["advantages"] is None


def test_advantages_that_the_trainer_makes_are_unknown_here(bench: Any) -> None:
    reader = with_batch(bench, micro_batch("g00000001", rewards=types.floats([0.0, 1.0, 0.0, 0.0])))
    assert reader.group("g00000001")["advantages"] is None


def test_groups_that_wait_have_their_state_and_no_step(bench: Any) -> None:
    reader = group_facts.Reader(bench.ledger.db)
    found = [reader.group(name) for name in ("g00000003", "g00000004")]
    assert [(facts["state"], facts["step"], facts["advantages"]) for facts in found] == [
        ("submitted", None, None), ("leased", None, None),
    ]  # fmt: skip


def test_unknown_group_is_answered_and_not_an_error(bench: Any) -> None:
    answers = io.StringIO()
    group_facts.answer(group_facts.Reader(bench.ledger.db), io.StringIO("nobody\n"), answers)
    assert json.loads(answers.getvalue()) == {"group": "nobody", "in_ledger": False}


def test_program_answers_questions_while_the_coordinator_holds_the_ledger(bench: Any) -> None:
    bench.ledger.db.change("DELETE FROM batch_parts")
    asked = subprocess.run(
        [sys.executable, "-m", "rljob_workers.coordinator.ledger.group_facts", str(bench.path.parent)],
        input="g00000002\n", capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert json.loads(asked.stdout)["step"] == 1


def test_program_says_where_it_looked_if_there_is_no_ledger(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert group_facts.main([str(tmp_path)]) == 1
    assert f"the ledger {tmp_path / 'ledger.sqlite'} cannot be read" in capsys.readouterr().err
