import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import errors, types
from rljob_testing import makers
from rljob_workers.rollout.episodes import arrays

ROW: dict[str, object] = {
    "input_ids": [[5, 6, 7]],
    "loss_mask": [[0, 1, 1]],
    "logprobs": [[0.0, -0.5, -0.5]],
    "versions": [[-1, 2, 2]],
    "rewards": [1.0],
}


@st.composite
def trajectories(draw: st.DrawFn) -> types.Trajectory:
    count = draw(st.integers(1, 6))
    return makers.make_trajectory(
        prompt=draw(st.lists(st.integers(0, 9), min_size=1, max_size=6)),
        completion=draw(st.lists(st.integers(0, 9), min_size=count, max_size=count)),
        versions=sorted(draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))),
        logprobs=draw(st.lists(st.floats(-9, 0, width=32), min_size=count, max_size=count)),
        reward=draw(st.floats(-5, 5)),
        truncated=draw(st.booleans()),
    )


@pytest.mark.covers("workflows 1.3")
@given(st.lists(trajectories(), min_size=1, max_size=4))
def test_padded_rows_come_back_from_json_as_they_were_but_for_the_numbers_of_their_turns(
    rows: list[types.Trajectory],
) -> None:
    found = arrays.rows_of(json.loads(json.dumps(arrays.padded(rows))))
    for index, (row, back) in enumerate(zip(rows, found, strict=True)):
        for key in ("tokens", "loss_mask", "logprobs", "versions", "reward", "raw_reward", "truncated"):
            assert getattr(back, key) == getattr(row, key), key
        assert list(back.turn_ids) == [index if sampled else -1 for sampled in row.loss_mask]


@pytest.mark.covers("workflows 1.3")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"logprobs": [[0.0, -0.5]]}, r"logprobs has rows of \[2\] values, input_ids of \[3\]"),
        ({"rewards": [1.0, 2.0]}, "rewards has 2 values for 1 rows"),
        ({"versions": [["x", 1, 1]]}, "versions holds a str, which is not a number"),
        ({"loss_mask": 1}, "holds int where a list belongs"),
    ],
)
def test_arrays_of_another_shape_are_refused_by_key(change: dict[str, object], said: str) -> None:
    with pytest.raises(errors.EpisodeError, match=said):
        arrays.rows_of({**ROW, **change})


def test_a_missing_key_is_named() -> None:
    with pytest.raises(errors.EpisodeError, match="have no versions, rewards"):
        arrays.rows_of({key: value for key, value in ROW.items() if key not in ("versions", "rewards")})


@pytest.mark.covers("workflows 1.3")
def test_a_row_that_breaks_a_rule_is_refused() -> None:
    with pytest.raises(errors.WireError, match="was not sampled but has"):
        arrays.rows_of({**ROW, "logprobs": [[-0.1, -0.5, -0.5]]})
