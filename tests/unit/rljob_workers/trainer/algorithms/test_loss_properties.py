"""The whole policy loss against its equation written out token by token, and what its value may not depend on.

Log-ratios lie on a grid that misses every bound, so that rounding decides nothing: the reference is in float64.
"""

import dataclasses
import math
import random as random_module
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api import types
from rljob_api.manifest.loss import CorrectionSpec, LossSpec
from rljob_testing.sections import section
from rljob_workers.trainer.algorithms import loss

STEP, OFFSET = 0.05, 0.013
LOW, HIGH, CAP, DUAL, CONSTANT = 0.5, 1.5, 2.0, 3.0, 4.0
ENTROPY_COEF, KL_COEF = 0.3, 0.7


@dataclasses.dataclass(frozen=True, slots=True)
class Token:
    """One sampled token: log pi_proximal, log r, log importance weight, log pi_ref, its advantage and its entropy."""

    proximal: float
    log_ratio: float
    log_importance: float
    reference: float
    advantage: float
    entropy: float


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A row; masked: truncated under maskTruncated."""

    tokens: tuple[Token, ...]
    masked: bool


# (w, whether the token is kept) of each token, given the log importance weights of its row.
Weigh = Callable[[Sequence[float]], list[tuple[float, bool]]]


def untouched(log_importance: Sequence[float]) -> list[tuple[float, bool]]:
    return [(math.exp(x), True) for x in log_importance]


def truncated(log_importance: Sequence[float]) -> list[tuple[float, bool]]:
    return [(min(math.exp(x), CAP), True) for x in log_importance]


def in_band(log_importance: Sequence[float]) -> list[tuple[float, bool]]:
    return [(math.exp(x), LOW <= math.exp(x) <= HIGH) for x in log_importance]


def geometric(log_importance: Sequence[float]) -> list[tuple[float, bool]]:
    mean = math.exp(math.fsum(log_importance) / len(log_importance))
    return [(1.0, LOW <= mean <= HIGH)] * len(log_importance)


CORRECTIONS: dict[str, tuple[CorrectionSpec, Weigh]] = {
    "none": (section(CorrectionSpec, mode="None", high=None), untouched),
    "truncate": (section(CorrectionSpec, mode="Truncate", high=CAP), truncated),
    "mask": (section(CorrectionSpec, mode="Mask", low=LOW, high=HIGH), in_band),
    "geometric": (
        section(CorrectionSpec, mode="Mask", level="Sequence", agg="Mean", weighting="None", low=LOW, high=HIGH),
        geometric,
    ),
}
LOSSES = ("ppo", "dual clip", "gspo", "cispo", "sapo", "reinforce")
AGGREGATIONS = ("TokenMean", "SequenceMean", "Constant")

steps = st.integers(-40, 40).map(lambda place: OFFSET + STEP * place)
tokens = st.builds(
    Token,
    proximal=st.sampled_from([-0.5, -1.0, -3.0]),
    log_ratio=steps,
    log_importance=steps,
    reference=st.sampled_from([-0.25, -1.5, -2.0]),
    advantage=st.sampled_from([-1.5, -0.5, 0.0, 1.0, 2.0]),
    entropy=st.sampled_from([0.1, 1.5]),
)
batches = st.lists(
    st.builds(Row, st.lists(tokens, min_size=1, max_size=3).map(tuple), st.booleans()), min_size=1, max_size=4
)


def config(loss_type: str, correction: str, aggregation: str, estimator: str = "K3") -> LossSpec:
    return section(
        LossSpec,
        type="ppo" if loss_type == "dual clip" else loss_type,
        dual_clip=DUAL if loss_type == "dual clip" else None,
        aggregation=aggregation,
        constant_denominator=CONSTANT,
        kl_coef=KL_COEF,
        kl_estimator=estimator,
        entropy_coef=ENTROPY_COEF,
        rollout_correction=CORRECTIONS[correction][0],
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """A loss and its slopes: of each token's log-probability and of the entropy at its place."""

    value: float
    by_logprob: list[float]
    by_entropy: list[float]


def computed(rows: Sequence[Row], chosen: LossSpec, whole: Sequence[Row] | None = None) -> Found:
    """Return what policy_loss makes of `rows`, a part of the minibatch `whole`."""
    flat = [token for row in rows for token in row.tokens]
    everything = rows if whole is None else whole
    theta = torch.tensor([t.proximal + t.log_ratio for t in flat], requires_grad=True)
    entropies = torch.tensor([t.entropy for t in flat], requires_grad=True)
    # Under reinforce the importance weight is of the policy itself, and there is no proximal one.
    base = theta.detach() if chosen.type == "reinforce" else torch.tensor([t.proximal for t in flat])
    made = loss.policy_loss(
        loss.LossInputs(
            logprobs=theta,
            entropies=entropies,
            behavior=base - torch.tensor([t.log_importance for t in flat]),
            advantages=torch.tensor([t.advantage for t in flat]),
            version_steps=torch.zeros(len(flat), dtype=torch.int32),
            row_index=torch.tensor([index for index, row in enumerate(rows) for _ in row.tokens]),
            row_tokens=torch.tensor([float(len(row.tokens)) for row in rows]),
            row_masked=torch.tensor([row.masked for row in rows]),
            minibatch=types.Minibatch(num_tokens=sum(len(row.tokens) for row in everything), num_rows=len(everything)),
            trainer_version=0,
            proximal=torch.tensor([t.proximal for t in flat]),
            reference=torch.tensor([t.reference for t in flat]),
        ),
        chosen,
    )
    made.loss.backward()
    assert theta.grad is not None
    assert entropies.grad is not None
    return Found(float(made.loss.detach()), theta.grad.tolist(), entropies.grad.tolist())


def surrogate(loss_type: str, theta: torch.Tensor, log_ratio: torch.Tensor, advantage: float) -> torch.Tensor:
    """Return l of one token as docs/design/algorithms.md#s-6-2 and #s-6-4 have it; log_ratio is the row's mean under
    gspo.
    """
    ratio = torch.exp(log_ratio)
    if loss_type == "reinforce":
        return -advantage * theta
    if loss_type == "cispo":
        return -min(max(float(ratio.detach()), 0.8), 1.2) * advantage * theta
    if loss_type == "sapo":
        tau = 1.0 if advantage > 0 else 1.05
        return -advantage * (4 / tau) / (1 + torch.exp(-tau * (ratio - 1)))
    found = torch.maximum(-advantage * ratio, -advantage * torch.clip(ratio, 0.8, 1.2))
    if loss_type == "dual clip" and advantage < 0:
        found = torch.clip(found, max=-DUAL * advantage)
    return found


def equation(rows: Sequence[Row], loss_type: str, weigh: Weigh, aggregation: str, estimator: str) -> Found:
    """Return L and its slopes, by autograd of the sum over tokens."""
    num_tokens = sum(len(row.tokens) for row in rows)
    thetas, entropies = [], []
    total = torch.zeros((), dtype=torch.float64)
    for row in rows:
        size = len(row.tokens)
        share = {
            "TokenMean": 1 / num_tokens,
            "SequenceMean": 1 / (len(rows) * size),
            "Constant": 1 / (len(rows) * CONSTANT),
        }[aggregation]
        theta = [torch.tensor(t.proximal + t.log_ratio, dtype=torch.float64, requires_grad=True) for t in row.tokens]
        entropy = [torch.tensor(t.entropy, dtype=torch.float64, requires_grad=True) for t in row.tokens]
        thetas += theta
        entropies += entropy
        log_ratios = [value - t.proximal for value, t in zip(theta, row.tokens, strict=True)]
        advantages = [t.advantage for t in row.tokens]
        if loss_type == "gspo":
            log_ratios = [torch.stack(log_ratios).mean()] * size
            advantages = [sum(advantages) / size] * size
        if row.masked:
            continue
        weighed = weigh([t.log_importance for t in row.tokens])
        for place, (weight, kept) in enumerate(weighed):
            if kept:
                total = total + share * weight * surrogate(
                    loss_type, theta[place], log_ratios[place], advantages[place]
                )
            distance = theta[place] - row.tokens[place].reference
            k = {"K2": distance**2 / 2, "K3": torch.exp(-distance) - 1 + distance}[estimator]
            total = total + KL_COEF * share * k - ENTROPY_COEF * entropy[place] / num_tokens
    if total.requires_grad:
        total.backward()
    slopes = [[0.0 if leaf.grad is None else float(leaf.grad) for leaf in leaves] for leaves in (thetas, entropies)]
    return Found(float(total.detach()), *slopes)


def assert_close(found: Found, expected: Found) -> None:
    assert found.value == pytest.approx(expected.value, rel=1e-4, abs=1e-5)
    assert found.by_logprob == pytest.approx(expected.by_logprob, rel=1e-4, abs=1e-5)
    assert found.by_entropy == pytest.approx(expected.by_entropy, rel=1e-4, abs=1e-6)


@pytest.mark.covers("algorithms 6")
@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("loss_type", LOSSES)
@settings(max_examples=15, deadline=None)
@given(rows=batches, aggregation=st.sampled_from(AGGREGATIONS), estimator=st.sampled_from(["K2", "K3"]))
def test_value_and_gradient_of_the_whole_loss_are_those_of_its_equation(
    loss_type: str, correction: str, rows: list[Row], aggregation: str, estimator: str
) -> None:
    found = computed(rows, config(loss_type, correction, aggregation, estimator))
    assert_close(found, equation(rows, loss_type, CORRECTIONS[correction][1], aggregation, estimator))


@pytest.mark.covers("algorithms 6.5")
@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("loss_type", LOSSES)
@settings(max_examples=10, deadline=None)
@given(rows=batches, aggregation=st.sampled_from(AGGREGATIONS), seed=st.integers(0, 999))
def test_the_order_of_rows_does_not_matter(
    loss_type: str, correction: str, rows: list[Row], aggregation: str, seed: int
) -> None:
    order = list(range(len(rows)))
    random_module.Random(seed).shuffle(order)
    chosen = config(loss_type, correction, aggregation)
    straight, shuffled = computed(rows, chosen), computed([rows[index] for index in order], chosen)
    starts = [sum(len(row.tokens) for row in rows[:index]) for index in range(len(rows))]
    places = [starts[index] + place for index in order for place in range(len(rows[index].tokens))]
    expected = Found(
        straight.value,
        [straight.by_logprob[place] for place in places],
        [straight.by_entropy[place] for place in places],
    )
    assert_close(shuffled, expected)


@pytest.mark.covers("algorithms 6.5")
@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("loss_type", LOSSES)
@settings(max_examples=10, deadline=None)
@given(rows=batches, aggregation=st.sampled_from(AGGREGATIONS), cut=st.integers(1, 3))
def test_micro_batches_of_any_split_add_up_to_the_whole(
    loss_type: str, correction: str, rows: list[Row], aggregation: str, cut: int
) -> None:
    chosen = config(loss_type, correction, aggregation)
    parts = [computed(part, chosen, whole=rows) for part in (rows[:cut], rows[cut:]) if part]
    added = Found(
        math.fsum(part.value for part in parts),
        [slope for part in parts for slope in part.by_logprob],
        [slope for part in parts for slope in part.by_entropy],
    )
    assert_close(added, computed(rows, chosen))
