import pytest
import torch

from rljob_api import enums, types
from rljob_workers.trainer.algorithms import statistics
from rljob_workers.trainer.algorithms.statistics import Peak, Sum

Stat = enums.StepStat


def tally(**values: float) -> statistics.Tally:
    made = statistics.Tally(torch.device("cpu"))
    made.put({Sum[name.upper()]: torch.tensor(value) for name, value in values.items()}, {})
    return made


def report(made: statistics.Tally, updates: int = 1) -> dict[Stat, float]:
    minibatches = [types.Minibatch(num_tokens=3, num_rows=1)] * updates
    return statistics.report(made.sums.tolist(), made.peaks.tolist(), minibatches)


@pytest.mark.covers("algorithms 11", "algorithms 15")
def test_behavior_statistics_of_the_worked_ratios() -> None:
    # Importance weights .4, 1, 3: a row of the table of docs/design/algorithms.md#s-11.
    found = report(
        tally(tokens=3, importance_weight=4.4, importance_weight_squared=10.16, behavior_k3=0.3163 + 0.0 + 0.9014)
    )
    assert found[Stat.BEHAVIOR_KL] == pytest.approx(0.4059, abs=1e-4)
    assert found[Stat.BEHAVIOR_CHI2_TOKEN] == pytest.approx(2.3867, abs=1e-4)
    assert found[Stat.BEHAVIOR_ESS] == pytest.approx(0.6352, abs=1e-4)


def test_means_over_nothing_are_left_out() -> None:
    found = report(statistics.Tally(torch.device("cpu")))
    assert Stat.MISMATCH_KL not in found
    assert Stat.RATIO_MEAN not in found
    assert found[Stat.MISMATCH_TOKENS] == 0.0


@pytest.mark.covers("algorithms 11")
def test_facts_of_the_batch_count_in_the_first_epoch_only() -> None:
    total = statistics.Tally(torch.device("cpu"))
    part = tally(tokens=3, mismatch_tokens=2, update_tokens=3, loss=0.5)
    total.add(part, batch_facts=True, mismatch=True)
    total.add(part, batch_facts=False, mismatch=False)
    assert float(total.sums[Sum.TOKENS]) == 3.0
    assert float(total.sums[Sum.MISMATCH_TOKENS]) == 2.0
    assert float(total.sums[Sum.UPDATE_TOKENS]) == 6.0
    assert report(total, updates=2)[Stat.LOSS] == 0.5


def test_mismatch_alone_can_be_left_out() -> None:
    total = statistics.Tally(torch.device("cpu"))
    total.add(tally(tokens=3, mismatch_tokens=2), batch_facts=True, mismatch=False)
    assert [float(total.sums[index]) for index in (Sum.TOKENS, Sum.MISMATCH_TOKENS)] == [3.0, 0.0]


def test_maxima_do_not_add_up() -> None:
    total = statistics.Tally(torch.device("cpu"))
    for ratio in (1.5, 1.2):
        part = statistics.Tally(torch.device("cpu"))
        part.put({}, {Peak.RATIO: torch.tensor(ratio)})
        total.add(part, batch_facts=True, mismatch=True)
    assert report(total)[Stat.RATIO_MAX] == 1.5


def test_masked_share_holds_every_reason() -> None:
    found = report(
        tally(
            tokens=10,
            correction_masked=2,
            truncated_masked=3,
            reject_masked=1,
            m2_masked=1,
            entropy_masked=2,
            update_tokens=10,
        )
    )
    assert found[Stat.MASKED_RATIO] == pytest.approx(0.9)


@pytest.mark.covers("algorithms 11")
def test_the_critics_loss_is_per_update_and_its_clip_per_token() -> None:
    found = report(tally(value_tokens=8, value_loss=0.5, value_clipped=2), updates=2)
    assert (found[Stat.VALUE_LOSS], found[Stat.VALUE_CLIP]) == (0.25, 0.25)
    assert Stat.VALUE_LOSS not in report(tally(tokens=3))


def test_observed_rows_stand_for_what_is_neither_trained_nor_looked_at() -> None:
    """100 tokens in 20 rows; 40 in 5 are trained; 15 in 3 stand for the other 60 in 15."""
    minibatches = [types.Minibatch(num_tokens=70, num_rows=12), types.Minibatch(num_tokens=30, num_rows=8)]
    found = statistics.Observed.of(minibatches, trained=(40.0, 5.0), counted=(15.0, 3.0))
    assert found == statistics.Observed(tokens=4.0, rows=5.0)


def test_without_observed_rows_nothing_is_divided() -> None:
    minibatches = [types.Minibatch(num_tokens=70, num_rows=12)]
    assert statistics.Observed.of(minibatches, trained=(70.0, 12.0), counted=(0.0, 0.0)) == statistics.Observed(
        tokens=0.0, rows=0.0
    )
