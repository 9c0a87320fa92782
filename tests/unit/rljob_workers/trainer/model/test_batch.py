import dataclasses

import pytest
import torch

from rljob_api import errors, types
from rljob_testing.trainer_makers import make_rows, pack
from rljob_workers.trainer.model import batch_tensors

CPU = torch.device("cpu")


def test_tensors_hold_the_wire_arrays() -> None:
    groups = make_rows(groups=2, size=2)
    wire = pack(groups, shared=True)
    tensors = batch_tensors.to_tensors(wire, CPU)
    assert tensors.tokens.shape == tensors.position_ids.shape == (1, len(wire.tokens))
    assert tensors.targets.tolist() == [token for group in groups for row in group for token in row.sampled]
    assert tensors.predictors.tolist() == list(wire.predictor_index)
    assert tensors.row_tokens.tolist() == [float(len(row.sampled)) for group in groups for row in group]


def test_arrays_of_a_message_may_be_read_only() -> None:
    wire = pack(make_rows(groups=1, size=1), shared=False)
    frozen = dataclasses.replace(wire, tokens=memoryview(wire.tokens.tobytes()).cast("i"))
    assert batch_tensors.to_tensors(frozen, CPU).tokens.tolist()[0] == list(wire.tokens)


def test_the_idle_batch_passes_its_own_checks() -> None:
    tensors = batch_tensors.to_tensors(batch_tensors.idle_batch(3), CPU)
    assert tensors.update == 3
    assert len(tensors.targets) == 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"advantages": types.floats([1.0])}, "advantages has 1 entries"),
        ({"predictor_index": types.ints([99] * 40)}, "predictor_index"),
        ({"segments": [types.Segment(start=0, end=3)]}, "segments end at 3"),
        ({"segments": [types.Segment(start=1, end=9)]}, "where 0 was expected"),
        ({"position_ids": types.ints([0])}, "1 positions"),
        ({"rewards": types.floats([1.0])}, "rewards has 1 entries"),
        ({"rows": ()}, "rows have 0 of"),
    ],
)
def test_contradicting_arrays_are_refused(change: dict[str, object], sentence: str) -> None:
    wire = pack(make_rows(groups=1, size=2), shared=False)
    fields = {field.name: getattr(wire, field.name) for field in dataclasses.fields(wire)} | change
    with pytest.raises(errors.WireError, match=sentence):
        batch_tensors.to_tensors(types.MicroBatch(**fields), CPU)


@pytest.mark.parametrize("parents", [(-1, -1, 0), (-1, 0, 0, 1)])
def test_a_child_must_follow_its_parent_and_the_descendants_of_that(parents: tuple[int, ...]) -> None:
    segments = [types.Segment(start=2 * i, end=2 * i + 2, parent=parent) for i, parent in enumerate(parents)]
    wire = dataclasses.replace(
        batch_tensors.idle_batch(0),
        tokens=types.ints([0] * 2 * len(parents)),
        position_ids=types.ints([0] * 2 * len(parents)),
        segments=segments,
    )
    with pytest.raises(errors.WireError, match=f"does not follow its parent {parents[-1]}"):
        batch_tensors.to_tensors(wire, CPU)


def test_a_token_that_two_rows_sampled_is_computed_once() -> None:
    wire = pack(make_rows(groups=1, size=2), shared=False)
    count = len(wire.target_index)
    assert batch_tensors.to_tensors(wire, CPU).repeats is None
    twice = dataclasses.replace(
        wire,
        target_index=types.ints([wire.target_index[0], *wire.target_index[:-1]]),
        predictor_index=types.ints([wire.predictor_index[0], *wire.predictor_index[:-1]]),
    )
    repeats = batch_tensors.to_tensors(twice, CPU).repeats
    assert repeats is not None
    assert repeats.first.tolist() == [0, *range(2, count)]
    assert repeats.which.tolist() == [0, *range(count - 1)]


def test_a_token_with_two_predictors_is_refused() -> None:
    wire = pack(make_rows(groups=1, size=2), shared=False)
    targets = types.ints([wire.target_index[1], *wire.target_index[1:]])
    with pytest.raises(errors.WireError, match="two places that predict it"):
        batch_tensors.to_tensors(dataclasses.replace(wire, target_index=targets), CPU)


def test_a_row_ends_at_its_last_sampled_token() -> None:
    (group,) = make_rows(groups=1, size=3, turns=True)
    tensors = batch_tensors.to_tensors(pack([group], shared=False), CPU)
    lengths = [len(row.tokens) for row in group]
    assert tensors.ends.tolist() == [sum(lengths[: index + 1]) - 1 for index in range(3)]
