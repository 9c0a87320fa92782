"""Generalised advantage estimation (arXiv 1506.02438) over rows of sampled tokens, in float64.

    delta_j = r_j + gamma V_{j+1} - V_j ;   A_j = delta_j + gamma lambda A_{j+1} ;   ret_j = A_j + V_j

j counts the sampled tokens of one row: what stands between turns takes no step of time. V after the last token is 0,
or the bootstrap of a cut answer. With the turn as unit, gamma and lambda act once per turn.
"""

import dataclasses

import torch

from rljob_api import roles
from rljob_workers.trainer import correction


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Estimated:
    """advantages, returns [N], float64."""

    advantages: torch.Tensor
    returns: torch.Tensor


def over_tokens(
    rewards: torch.Tensor,
    values: torch.Tensor,
    rows: correction.Rows,
    *,
    gamma: float,
    decay: torch.Tensor,
    bootstrap: torch.Tensor,
) -> Estimated:
    """Return advantages with the token as unit. rewards, values [N]; decay (lambda), bootstrap [rows].

    Tokens of a row stand together and in order.
    """
    columns = _columns(rows)
    length = int(columns.max()) + 1
    # Rows end in the last column; what stands before their first token is never read.
    place = (rows.index, columns)
    padded = rewards.new_zeros((2, len(rows.tokens), length + 1), dtype=torch.float64)
    padded[0][place], padded[1][place] = rewards.double(), values.double()
    padded[1][:, length] = bootstrap.double()
    deltas = padded[0][:, :length] + gamma * padded[1][:, 1:] - padded[1][:, :length]
    found = _discounted_sums(deltas, gamma * decay.double())[place]
    return Estimated(found, found + values.double())


def _discounted_sums(deltas: torch.Tensor, discount: torch.Tensor) -> torch.Tensor:
    """Return A with A_j = delta_j + discount A_{j+1} along the columns of deltas [rows, T]; discount [rows].

    By doubling: where each column holds the sum over its next s, adding discount^s times the column s further on makes
    it 2 s. Log2(T) passes instead of T, and as stable as the recursion, since the discount is at most 1.
    """
    sums, stride = deltas, 1
    while stride < deltas.shape[1]:
        later = discount.pow(stride)[:, None] * sums[:, stride:]
        sums = torch.cat([sums[:, :-stride] + later, sums[:, -stride:]], dim=1)
        stride *= 2
    return sums


def _columns(rows: correction.Rows) -> torch.Tensor:
    """Return the column of each token [N] when rows are aligned at their ends."""
    tokens = rows.tokens.long()
    ends = tokens.cumsum(0)
    return torch.arange(len(rows.index), device=rows.index.device) - ends[rows.index] + int(tokens.max())


def num_turns(turns: torch.Tensor, rows: correction.Rows) -> torch.Tensor:
    """Return how many turns each row holds tokens of [rows]."""
    return torch.bincount(rows.index[_opens(turns, rows)], minlength=len(rows.tokens))


def _opens(turns: torch.Tensor, rows: correction.Rows) -> torch.Tensor:
    """Return which tokens [N] are the first of their turn."""
    opens = torch.ones_like(turns, dtype=torch.bool)
    opens[1:] = (turns[1:] != turns[:-1]) | (rows.index[1:] != rows.index[:-1])
    return opens


def over_turns(
    rewards: torch.Tensor,
    values: torch.Tensor,
    turns: torch.Tensor,
    rows: correction.Rows,
    *,
    gamma: float,
    decay: torch.Tensor,
    bootstrap: torch.Tensor,
) -> Estimated:
    """Return advantages with the turn as unit, copied to its tokens. turns [N]: ids, not decreasing in a row.

    A turn's reward is the sum of its tokens', its value that of its first token; an unused id takes no step.
    """
    opens = _opens(turns, rows)
    unit = opens.long().cumsum(0) - 1
    units = rows.index[opens]
    sums = rewards.new_zeros(len(units), dtype=torch.float64).index_add_(0, unit, rewards.double())
    per_row = torch.bincount(units, minlength=len(rows.tokens))
    estimated = over_tokens(
        sums, values[opens], correction.Rows(units, per_row), gamma=gamma, decay=decay, bootstrap=bootstrap
    )
    return Estimated(estimated.advantages[unit], estimated.returns[unit])


def decay(config: roles.DecayConfig, lengths: torch.Tensor) -> torch.Tensor:
    """Return lambda per row [rows], float64; lengths [rows]: steps of time of each row."""
    if config.kind == "vapo":
        return vapo(lengths, alpha=config.value)
    if config.kind == "relativePosition":
        return relative_position(lengths, q=config.value)
    return torch.full_like(lengths, config.value, dtype=torch.float64)


def vapo(lengths: torch.Tensor, *, alpha: float) -> torch.Tensor:
    """Return lambda = max(0, 1 - 1 / (alpha L)) per row of L steps (VAPO, arXiv 2504.05118); L = 0 gives 0."""
    steps = lengths.double()
    return torch.where(steps > 0, (1 - 1 / (alpha * steps.clamp(min=1))).clamp(min=0), torch.zeros_like(steps))


def relative_position(lengths: torch.Tensor, *, q: float) -> torch.Tensor:
    """Return lambda = q^(1 / (L - 1)) per row of L steps, so that the first step sees q of the last; L = 1 gives 1."""
    steps = lengths.double()
    powers = torch.pow(torch.full_like(steps, q), 1 / (steps - 1).clamp(min=1))
    return torch.where(steps > 1, powers, (steps == 1).double())
