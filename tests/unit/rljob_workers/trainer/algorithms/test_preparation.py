"""What is known before the first update, over an engine and a reference that answer with fixed numbers."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import pytest
import torch

from rljob_api import enums, errors
from rljob_api.manifest.algorithm import AlgorithmSpec, CriticSpec, NormalizeSpec
from rljob_api.manifest.loss import CorrectionSpec, LossSpec
from rljob_testing import trainer_makers as makers
from rljob_testing.sections import make_spec, section
from rljob_testing.trainer_makers import make_returns
from rljob_workers.trainer import pre_update
from rljob_workers.trainer.algorithms import advantages as advantages_module
from rljob_workers.trainer.model import batch_tensors

Stat = enums.StepStat

CPU = torch.device("cpu")
PLUS_PLUS = make_returns(normalize=section(NormalizeSpec, mean="Batch", std="Batch", eps=0.0))


class FakeModel:
    """Every log-probability is `logprob`; counts its forwards."""

    def __init__(self, logprob: float = -1.0) -> None:
        self.logprob, self.scored = logprob, 0

    def forward(self, tensors: batch_tensors.BatchTensors) -> tuple[torch.Tensor, torch.Tensor]:
        """Entropies are the negative log-probabilities with which tokens were sampled."""
        return self.score(tensors), -tensors.behavior

    def score(self, tensors: batch_tensors.BatchTensors) -> torch.Tensor:
        self.scored += 1
        return torch.full((len(tensors.targets),), self.logprob)

    def total(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def largest(self, values: Sequence[float]) -> list[float]:
        return list(values)


def row(
    reward: float,
    tokens: int,
    *,
    behavior: float = -1.0,
    masked: bool = False,
    truncated: bool = False,
    group: int = 0,
) -> makers.Row:
    """A row that earns `reward` on its last token."""
    return makers.Row(
        prompt=(1,),
        sampled=(2,) * tokens,
        behavior=(behavior,) * tokens,
        advantages=(0.0,) * tokens,
        version_steps=(0,) * tokens,
        masked=masked,
        rewards=(0.0,) * (tokens - 1) + (reward,),
        turn_ids=(0,) * tokens,
        truncated=truncated,
        group=group,
    )


def work_of(*updates: Sequence[Sequence[makers.Row]]) -> list[list[pre_update.Work]]:
    """Each update lists its micro-batches, each of them rows."""
    return [
        [
            pre_update.Work(batch_tensors.to_tensors(makers.pack([rows], shared=False, update=update), CPU), idle=False)
            for rows in parts
        ]
        for update, parts in enumerate(updates)
    ]


def config(
    loss: LossSpec | None = None,
    *,
    returns: Mapping[str, object] | None = None,
    critic: CriticSpec | None = None,
    minibatches: int = 1,
    epochs: int = 1,
) -> AlgorithmSpec:
    changes = {**(returns or {}), "algorithm.epochs": epochs}
    return make_spec(changes, loss=loss, critic=critic, minibatches=minibatches).algorithm


def advantages(work: Sequence[Sequence[pre_update.Work]]) -> list[list[float]]:
    return [item.tensors.advantages.tolist() for part in work for item in part]


def test_the_default_asks_for_no_forward_and_changes_nothing() -> None:
    engine, work = FakeModel(), work_of([[row(0.5, 2)]])
    before = work[0][0].tensors
    assert pre_update.prepare(work, engine, None, config()) == pre_update.Prepared(1.0, {})
    assert engine.scored == 0
    assert work[0][0].tensors is before
    assert work[0][0].keep_mask is None


@pytest.mark.covers("algorithms 5", "algorithms 15")
def test_reinforcepp_whitens_over_the_tokens_of_all_micro_batches() -> None:
    work = work_of([[row(1.0, 1)], [row(-1.0, 3)]])
    pre_update.prepare(work, FakeModel(), None, config(returns=PLUS_PLUS))
    assert advantages(work) == [[pytest.approx(1.5)], [pytest.approx(-0.5)] * 3]


@pytest.mark.covers("algorithms 5.1")
def test_rows_without_reward_and_masked_ones_count_in_the_statistics() -> None:
    """Tokens [1, 0, 0, -1]: mean 0, sigma sqrt(2 / 3)."""
    work = work_of([[row(1.0, 1), row(0.0, 2), row(-1.0, 1, masked=True)]])
    pre_update.prepare(work, FakeModel(), None, config(returns=PLUS_PLUS))
    assert advantages(work) == [pytest.approx([1.224745, 0.0, 0.0, -1.224745])]


@pytest.mark.covers("algorithms 5.1")
def test_whitening_is_over_the_step_and_not_over_each_minibatch() -> None:
    whole, cut = work_of([[row(1.0, 1), row(-1.0, 3)]]), work_of([[row(1.0, 1)]], [[row(-1.0, 3)]])
    pre_update.prepare(whole, FakeModel(), None, config(returns=PLUS_PLUS))
    pre_update.prepare(cut, FakeModel(), None, config(returns=PLUS_PLUS, minibatches=2))
    assert list(itertools.chain(*advantages(cut))) == list(itertools.chain(*advantages(whole)))


def test_a_second_epoch_gets_the_same_advantages_and_is_not_counted() -> None:
    once, twice = work_of([[row(1.0, 1), row(-1.0, 3)]]), work_of([[row(1.0, 1), row(-1.0, 3)]], [[row(-1.0, 3)]])
    pre_update.prepare(once, FakeModel(), None, config(returns=PLUS_PLUS))
    pre_update.prepare(twice, FakeModel(), None, config(returns=PLUS_PLUS, epochs=2))
    assert advantages(twice) == [advantages(once)[0], advantages(once)[0][1:]]


@pytest.mark.covers("algorithms 5.2")
def test_a_discount_counts_sampled_tokens_back_from_the_end_of_the_row() -> None:
    work = work_of([[row(1.0, 3), row(2.0, 1)]])
    pre_update.prepare(work, FakeModel(), None, config(returns=make_returns(gamma=0.5)))
    assert advantages(work) == [[0.25, 0.5, 1.0, 2.0]]


def kl_config(**changes: object) -> LossSpec:
    return section(
        LossSpec,
        **{"constant_denominator": 8.0, "kl_coef": 0.1, "kl_estimator": "K1", "kl_placement": "Reward", **changes},
    )


@pytest.mark.covers("algorithms 6.7")
def test_kl_in_the_reward_is_that_of_the_proximal_policy_and_reaches_earlier_tokens() -> None:
    """d = -1 - -1.5 = 0.5 on each of three tokens: 1 - 0.15, 1 - 0.10, 1 - 0.05."""
    engine, reference = FakeModel(-1.0), FakeModel(-1.5)
    work = work_of([[row(1.0, 3, behavior=-9.0)]])
    pre_update.prepare(work, engine, reference, config(kl_config(), returns=make_returns()))
    assert advantages(work) == [pytest.approx([0.85, 0.9, 0.95])]
    assert (engine.scored, reference.scored) == (1, 1)


def test_under_behavior_the_engine_s_policy_is_compared_with_the_reference() -> None:
    engine, reference = FakeModel(-7.0), FakeModel(-1.5)
    work = work_of([[row(1.0, 2, behavior=-1.0)]])
    chosen = kl_config(proximal="Behavior", rollout_correction=None)
    pre_update.prepare(work, engine, reference, config(chosen, returns=make_returns()))
    assert advantages(work) == [pytest.approx([0.9, 0.95])]
    assert engine.scored == 0


def test_kl_in_the_loss_asks_the_reference_once_per_micro_batch_and_the_policy_not_at_all() -> None:
    engine, reference = FakeModel(), FakeModel(-1.5)
    work = work_of([[row(1.0, 2)], [row(1.0, 1)]])
    work[0].append(dataclasses.replace(work[0][0], idle=True))
    pre_update.prepare(work, engine, reference, config(kl_config(kl_placement="Loss", kl_estimator="K3")))
    # Idle ones too: where the reference is the trained model without its adapter, a forward may be collective.
    assert (engine.scored, reference.scored) == (0, 3)
    assert work[0][1].reference is not None
    assert work[0][1].reference.tolist() == [-1.5]


def test_m2po_drops_tokens_over_the_whole_minibatch_whatever_the_split() -> None:
    """Squares of behavior + 1 against the threshold: .01, .04, .25, .0025."""
    rows = [row(1.0, 1, behavior=behavior) for behavior in (-1.1, -1.2, -1.5, -1.05)]
    loss = section(LossSpec, constant_denominator=8.0, m2_threshold=0.04)
    for parts in ([rows], [[each] for each in rows], [rows[:1], rows[1:]]):
        engine, work = FakeModel(-1.0), work_of(parts)
        pre_update.prepare(work, engine, None, config(loss))
        kept = [item.keep_mask.tolist() for part in work for item in part if item.keep_mask is not None]
        assert list(itertools.chain(*kept)) == [True, True, False, True]


@pytest.mark.parametrize(
    "loss",
    [
        {},
        {"m2_threshold": 0.04, "constant_denominator": 8.0},
        {"rollout_correction": section(CorrectionSpec, batch_normalize=True)},
    ],
)
def test_where_no_token_has_an_advantage_policies_are_not_compared(loss: Mapping[str, object]) -> None:
    algorithm = config(section(LossSpec, **loss), minibatches=2)
    for has_advantages, forwards in ((True, 2), (False, 0)):
        engine, work = FakeModel(), work_of([[row(0.0, 2, behavior=-1.5)]], [[row(0.0, 3, behavior=-1.5)]])
        prepared = pre_update.prepare(work, engine, None, algorithm, has_advantages=has_advantages)
        assert engine.scored == forwards
        assert (prepared.mean_weight == 1.0) == (not has_advantages or "rollout_correction" not in loss)


def uncertain(*, top_quantile: float, minibatches: int = 1, loss: LossSpec | None = None) -> AlgorithmSpec:
    changes = {"algorithm.entropy.topQuantile": str(top_quantile)}
    return make_spec(changes, minibatches=minibatches, loss=loss).algorithm


@pytest.mark.covers("algorithms 6.6")
def test_tokens_of_the_highest_entropy_are_chosen_over_the_whole_minibatch_whatever_the_split() -> None:
    rows = [row(1.0, 1, behavior=behavior) for behavior in (-0.1, -0.9, -0.5, -0.7)]
    for parts in ([rows], [[each] for each in rows], [rows[:1], rows[1:]]):
        engine, work = FakeModel(), work_of(parts)
        pre_update.prepare(work, engine, None, uncertain(top_quantile=0.5))
        chosen = [item.entropy_mask.tolist() for part in work for item in part if item.entropy_mask is not None]
        assert list(itertools.chain(*chosen)) == [False, True, False, True]
        assert engine.scored == len(parts), "one forward of each micro-batch"


def test_the_forward_that_finds_entropies_is_the_proximal_policy_where_that_is_needed() -> None:
    one, two = work_of([[row(1.0, 2)]]), work_of([[row(1.0, 2)]], [[row(1.0, 2)]])
    engine = FakeModel(-1.5)
    pre_update.prepare(one, engine, None, uncertain(top_quantile=0.5))
    pre_update.prepare(two, engine, None, uncertain(top_quantile=0.5, minibatches=2))
    proximal = [None if item.proximal is None else item.proximal.tolist() for part in one + two for item in part]
    assert proximal == [None, [-1.5, -1.5], [-1.5, -1.5]]
    assert engine.scored == 3


class FakeCritic:
    """The value before every token is `value`, after every row `end`."""

    def __init__(self, value: float, end: float) -> None:
        self.value, self.end, self.scored = value, end, 0

    def score(self, tensors: batch_tensors.BatchTensors) -> advantages_module.Values:
        self.scored += 1
        return advantages_module.Values(
            torch.full((len(tensors.targets),), self.value), torch.full((len(tensors.row_tokens),), self.end)
        )


@pytest.mark.covers("algorithms 5")
def test_values_enter_advantages_and_returns_and_later_epochs_get_the_same() -> None:
    """r [0, 1], V .5, gamma 1, lambda 0: delta [.5 - .5, 1 - .5], returns [.5, 1]."""
    returns = make_returns(lambda_="0.0")
    work, critic = work_of([[row(1.0, 2)]], [[row(1.0, 2)]]), FakeCritic(0.5, 9.0)
    settings = config(returns=returns, critic=CriticSpec(), epochs=2)
    prepared = pre_update.prepare(work, FakeModel(), None, settings, critic)
    assert advantages(work) == [[0.0, 0.5]] * 2
    assert [item.returns.tolist() for part in work for item in part if item.returns is not None] == [[0.5, 1.0]] * 2
    # Returns [.5, 1]: variance 1/16; residuals [0, .5]: the same.
    assert prepared.stats[Stat.EXPLAINED_VARIANCE] == 0.0


@pytest.mark.covers("algorithms 5.2")
@pytest.mark.parametrize(("bootstrap", "expected"), [(True, [2.0, 2.0]), (False, [0.0, 0.0])])
def test_only_a_cut_row_goes_on_with_the_value_after_its_end(bootstrap: bool, expected: list[float]) -> None:
    returns = make_returns(bootstrap_truncated=bootstrap)
    work = work_of([[row(0.0, 2, truncated=True), row(0.0, 1)]])
    pre_update.prepare(work, FakeModel(), None, config(returns=returns, critic=CriticSpec()), FakeCritic(0, 2))
    assert advantages(work) == [[*expected, 0.0]]


def test_idle_micro_batches_are_valued_too_since_a_forward_may_be_collective() -> None:
    work, critic = work_of([[row(1.0, 1)]]), FakeCritic(0.0, 0.0)
    work[0].append(dataclasses.replace(work[0][0], idle=True))
    pre_update.prepare(work, FakeModel(), None, config(returns=make_returns()), critic)
    assert critic.scored == 2


@pytest.mark.covers("algorithms 5.3")
def test_lambda_may_look_at_the_length_of_each_row() -> None:
    """relativePosition .25: over three tokens .5, so that 1 is seen as [.25, .5, 1]; a lone token sees all of it."""
    returns = make_returns(lambda_="relativePosition{0.25}")
    work = work_of([[row(1.0, 3), row(1.0, 1)]])
    pre_update.prepare(work, FakeModel(), None, config(returns=returns))
    assert advantages(work) == [[0.25, 0.5, 1.0, 1.0]]


TWO_TURNS = dataclasses.replace(row(0.0, 4), rewards=(0.0, 1.0, 0.0, 2.0), turn_ids=(0, 0, 1, 1))


@pytest.mark.covers("algorithms 5.3")
def test_with_the_turn_as_unit_gamma_acts_once_per_turn() -> None:
    work = work_of([[TWO_TURNS]])
    pre_update.prepare(work, FakeModel(), None, config(returns=make_returns(gamma=0.5, unit="Turn")))
    assert advantages(work) == [[2.0, 2.0, 2.0, 2.0]]


@pytest.mark.covers("algorithms 5.3")
def test_with_the_turn_as_unit_lambda_counts_turns() -> None:
    """relativePosition .25 over two turns is .25: 1 + .25 x 2 = 1.5."""
    returns = make_returns(unit="Turn", lambda_="relativePosition{0.25}")
    work = work_of([[TWO_TURNS]])
    pre_update.prepare(work, FakeModel(), None, config(returns=returns))
    assert advantages(work) == [[1.5, 1.5, 2.0, 2.0]]


@pytest.mark.covers("algorithms 5.3")
def test_with_the_turn_as_unit_kl_is_taken_off_each_token_and_not_carried_back() -> None:
    work = work_of([[TWO_TURNS]])
    returns = make_returns(unit="Turn")
    pre_update.prepare(work, FakeModel(-1.0), FakeModel(-1.5), config(kl_config(), returns=returns))
    assert advantages(work) == [pytest.approx([2.95, 2.95, 1.95, 1.95])]


@pytest.mark.covers("algorithms 5.1")
def test_a_level_of_groups_reaches_over_micro_batches() -> None:
    """Group 0 has [2, 0] in two micro-batches, group 1 one row: exactly 0."""
    returns = make_returns(normalize=section(NormalizeSpec, mean="Group", std="None"))
    work = work_of([[row(2.0, 1, group=0)], [row(0.0, 1, group=0), row(5.0, 1, group=1)]])
    pre_update.prepare(work, FakeModel(), None, config(returns=returns))
    assert advantages(work) == [[1.0], [-1.0, 0.0]]


@pytest.mark.covers("algorithms 11")
def test_advantages_are_reported_over_rows_and_groups_without_any_are_counted() -> None:
    """Rows 1, -1, 0, 0: groups 1 and 2 have nothing; group 2's row is on its own."""
    returns = make_returns(gamma=1.0)
    work = work_of([[row(1.0, 2, group=0), row(0.0, 3, group=1)], [row(-1.0, 1, group=0), row(0.0, 1, group=2)]])
    found = pre_update.prepare(work, FakeModel(), None, config(returns=returns)).stats
    assert found[Stat.ZERO_ADVANTAGE_GROUPS] == 2.0
    assert (found[Stat.ADVANTAGE_MEAN], found[Stat.ADVANTAGE_MIN], found[Stat.ADVANTAGE_MAX]) == (0.0, -1.0, 1.0)
    assert found[Stat.ADVANTAGE_STD] == pytest.approx(0.5**0.5)


@pytest.mark.covers("algorithms 11")
def test_whitening_that_moves_equal_groups_leaves_none_without_advantage() -> None:
    work = work_of([[row(1.0, 1, group=0), row(0.0, 1, group=1)]])
    found = pre_update.prepare(work, FakeModel(), None, config(returns=PLUS_PLUS)).stats
    assert found[Stat.ZERO_ADVANTAGE_GROUPS] == 0.0


def test_a_batch_without_rewards_is_refused_where_advantages_are_made_of_them() -> None:
    bare = dataclasses.replace(row(1.0, 2), rewards=(), turn_ids=())
    with pytest.raises(errors.WireError, match="no rewards for its 2 sampled tokens"):
        pre_update.prepare(work_of([[bare]]), FakeModel(), None, config(returns=PLUS_PLUS))
