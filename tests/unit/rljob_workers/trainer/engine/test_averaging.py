"""The mean of weights after several steps."""

import pathlib

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_workers.trainer.engine import averaging

VALUES = st.lists(st.floats(min_value=-8.0, max_value=8.0, width=32), min_size=3, max_size=3)


@settings(max_examples=50, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=12), st.integers(min_value=0, max_value=12))
def test_it_is_the_mean_of_what_was_added_also_after_a_restart(rows: list[list[float]], kept_after: int) -> None:
    mean = averaging.RunningMean()
    for number, row in enumerate(rows):
        if number == kept_after:
            mean = averaging.RunningMean(mean.count, {name: value.clone() for name, value in mean.means.items()})
        mean.add([("a", torch.tensor(row))])
    assert mean.count == len(rows)
    torch.testing.assert_close(mean.means["a"], torch.tensor(rows).mean(0), rtol=1e-5, atol=1e-5)


def test_what_is_added_may_change_afterwards() -> None:
    weights = torch.tensor([1.0])
    mean = averaging.RunningMean()
    mean.add([("a", weights)])
    weights.fill_(5.0)
    assert mean.means["a"].item() == 1.0


def test_a_file_is_written_where_there_is_something_to_keep(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "mean.pt"
    averaging.RunningMean().save(path)
    assert not path.exists()
    assert averaging.RunningMean.load(path) == averaging.RunningMean()
    mean = averaging.RunningMean()
    mean.add([("a", torch.tensor([1.5, -2.0]))])
    mean.save(path)
    found = averaging.RunningMean.load(path)
    assert found.count == 1
    assert found.means["a"].tolist() == [1.5, -2.0]
