"""What a step measured: sums that add up over micro-batches and ranks, and the means that are reported from them.

Facts of the batch (behavior, mismatch, entropy) are counted in the first epoch only, since later epochs repeat the same
tokens; facts of an update are counted in each. Facts of the batch are about all of its rows: rows whose advantages are
all zero are not trained, but a sample of them is computed (coordinator/packing.py) and stands for the others, a token
for as many as `Observed` says. Facts of an update are over the rows that it trains; losses use the minibatch's
own denominators, which count every row.

What is distinguished: mismatch/* engine against trainer, on rows that the present version sampled whole;
mismatch/stale_cache_* the same on its tokens in rows that older versions began, and left their keys and values;
behavior/* the weights now against those that sampled, whatever the age, on all rows.
"""

import dataclasses
import enum
import math
from collections.abc import Collection, Mapping, Sequence

import torch

from rljob_api import enums, types

Stat = enums.StepStat


class Sum(enum.IntEnum):
    """Index of each sum in a tally. Up to STALE_ABS: facts of the batch; UPDATE_TOKENS on: of an update."""

    TOKENS = 0
    ROWS = 1
    CORRECTION_MASKED = 2
    REJECT_MASKED = 3
    TRUNCATED_MASKED = 4
    STALE_MASKED = 5
    WEIGHT = 6
    IMPORTANCE_WEIGHT = 7
    IMPORTANCE_WEIGHT_SQUARED = 8
    BEHAVIOR_K3 = 9
    ROW_CHI2 = 10
    ROW_PPL = 11
    ENTROPY_TOKENS = 12
    ENTROPY = 13
    MISMATCH_TOKENS = 14
    MISMATCH_K3 = 15
    MISMATCH_ABS = 16
    MISMATCH_EXP_ABS = 17
    GAP_TOKENS = 18
    GAP_ABS = 19
    STALE_TOKENS = 20
    STALE_ABS = 21
    UPDATE_TOKENS = 22
    LOSS = 23
    RATIO = 24
    MINUS_LOG_RATIO = 25
    CLIP_LOW = 26
    CLIP_HIGH = 27
    CLIP_DUAL = 28
    NONFINITE = 29
    REF_TOKENS = 30
    REF_KL = 31
    M2_MASKED = 32
    VALUE_TOKENS = 33
    VALUE_LOSS = 34
    VALUE_CLIPPED = 35
    KL_LOSS = 36
    ENTROPY_LOSS = 37
    NONFINITE_LOSS = 38
    TEACHER_TOKENS = 39
    TEACHER_KL = 40
    ENTROPY_MASKED = 41


class Peak(enum.IntEnum):
    """Index of each maximum."""

    RATIO = 0
    WEIGHT = 1


_MISMATCH = slice(Sum.MISMATCH_TOKENS, Sum.UPDATE_TOKENS)
_BATCH = slice(0, Sum.UPDATE_TOKENS)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """How many tokens and rows of the batch each token and row stands for that is computed without being trained."""

    tokens: float = 1.0
    rows: float = 1.0

    @classmethod
    def of(
        cls, minibatches: Sequence[types.Minibatch], *, trained: Sequence[float], counted: Sequence[float]
    ) -> "Observed":
        """Return the factors. trained, counted: (tokens, rows) of all ranks' rows that are trained, and not."""
        whole = (sum(part.num_tokens for part in minibatches), sum(part.num_rows for part in minibatches))
        tokens, rows = (
            max(0.0, total - own) / num_counted if num_counted else 0.0
            for total, own, num_counted in zip(whole, trained, counted, strict=True)
        )
        return cls(tokens=tokens, rows=rows)


class Tally:
    """Sums [len(Sum)] and maxima [len(Peak)], float64, on one device."""

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(len(Sum), dtype=torch.float64, device=device)
        self.peaks = torch.zeros(len(Peak), dtype=torch.float64, device=device)

    def put(self, values: Mapping[Sum, torch.Tensor], peaks: Mapping[Peak, torch.Tensor]) -> None:
        """Set entries; each value is a scalar tensor."""
        for index, value in values.items():
            self.sums[index] = value
        for peak, value in peaks.items():
            self.peaks[peak] = value

    def add(self, other: "Tally", *, batch_facts: bool, mismatch: bool) -> None:
        """Add one micro-batch: facts of the batch only if `batch_facts`, the mismatch of them only if `mismatch`."""
        added = other.sums.clone()
        if not mismatch:
            added[_MISMATCH] = 0.0
        if not batch_facts:
            added[_BATCH] = 0.0
        self.sums += added
        self.peaks = torch.maximum(self.peaks, other.peaks)


def report(
    sums: Sequence[float],
    peaks: Sequence[float],
    minibatches: Sequence[types.Minibatch],
    *,
    terms: Collection[Stat] = (),
) -> dict[Stat, float]:
    """Return the statistics of a step from its totals over all ranks. A mean over nothing is left out.

    `minibatches`: one per update; LOSS was divided by their denominators, so its mean is per update. `terms`: which of
    KL_LOSS and ENTROPY_LOSS are parts of it.
    """
    stats = {
        Stat.LOSS: sums[Sum.LOSS] / max(1, len(minibatches)),
        Stat.RATIO_MAX: peaks[Peak.RATIO],
        Stat.WEIGHT_MAX: peaks[Peak.WEIGHT],
        Stat.MISMATCH_TOKENS: sums[Sum.MISMATCH_TOKENS],
        Stat.STALE_CACHE_TOKENS: sums[Sum.STALE_TOKENS],
    }
    stats |= {term: sums[_TERMS[term]] / max(1, len(minibatches)) for term in terms}
    stats |= _means(sums, Sum.UPDATE_TOKENS, _UPDATE_MEANS)
    stats |= _means(sums, Sum.TOKENS, _TOKEN_MEANS) | _means(sums, Sum.ROWS, _ROW_MEANS)
    stats |= _means(sums, Sum.MISMATCH_TOKENS, _MISMATCH_MEANS) | _means(sums, Sum.REF_TOKENS, _REFERENCE_MEANS)
    stats |= _means(sums, Sum.TEACHER_TOKENS, {Stat.TEACHER_KL: Sum.TEACHER_KL})
    stats |= _means(sums, Sum.ENTROPY_TOKENS, {Stat.ENTROPY: Sum.ENTROPY})
    stats |= _means(sums, Sum.GAP_TOKENS, {Stat.BEHAVIOR_ABS_DIFF: Sum.GAP_ABS})
    stats |= _means(sums, Sum.STALE_TOKENS, {Stat.STALE_CACHE_ABS_DIFF: Sum.STALE_ABS})
    if sums[Sum.VALUE_TOKENS] > 0:
        stats[Stat.VALUE_LOSS] = sums[Sum.VALUE_LOSS] / max(1, len(minibatches))
        stats[Stat.VALUE_CLIP] = sums[Sum.VALUE_CLIPPED] / sums[Sum.VALUE_TOKENS]
    if Stat.BEHAVIOR_CHI2_TOKEN in stats:
        stats[Stat.BEHAVIOR_CHI2_TOKEN] -= 1.0
        stats[Stat.BEHAVIOR_ESS] = effective_sample_share(sums)
        stats[Stat.MASKED_RATIO] = sum(sums[reason] for reason in _MASKED) / sums[Sum.TOKENS]
        stats[Stat.MASKED_RATIO] += m2_share(sums) + low_entropy_share(sums)
    return stats


_UPDATE_MEANS = {
    Stat.RATIO_MEAN: Sum.RATIO,
    Stat.APPROX_KL: Sum.MINUS_LOG_RATIO,
    Stat.CLIP_LOW: Sum.CLIP_LOW,
    Stat.CLIP_HIGH: Sum.CLIP_HIGH,
    Stat.CLIP_DUAL: Sum.CLIP_DUAL,
}
_TOKEN_MEANS = {
    Stat.BEHAVIOR_KL: Sum.BEHAVIOR_K3,
    Stat.BEHAVIOR_CHI2_TOKEN: Sum.IMPORTANCE_WEIGHT_SQUARED,
    Stat.WEIGHT_MEAN: Sum.WEIGHT,
}
_ROW_MEANS = {Stat.BEHAVIOR_CHI2_SEQ: Sum.ROW_CHI2, Stat.BEHAVIOR_PPL_RATIO: Sum.ROW_PPL}
_MISMATCH_MEANS = {
    Stat.MISMATCH_KL: Sum.MISMATCH_K3,
    Stat.LOGPROB_ABS_DIFF: Sum.MISMATCH_ABS,
    Stat.MULT_PROB_ERROR: Sum.MISMATCH_EXP_ABS,
}

_MASKED = (Sum.CORRECTION_MASKED, Sum.REJECT_MASKED, Sum.TRUNCATED_MASKED, Sum.STALE_MASKED)
_TERMS = {Stat.KL_LOSS: Sum.KL_LOSS, Stat.ENTROPY_LOSS: Sum.ENTROPY_LOSS}
_REFERENCE_MEANS = {Stat.REF_KL: Sum.REF_KL}


def _means(sums: Sequence[float], count: Sum, which: Mapping[Stat, Sum]) -> dict[Stat, float]:
    return {stat: sums[index] / sums[count] for stat, index in which.items()} if sums[count] > 0 else {}


def m2_share(sums: Sequence[float]) -> float:
    """Return the share of tokens that M2PO alone leaves out; it is counted in every epoch, each cut again."""
    return _update_share(sums, Sum.M2_MASKED)


def low_entropy_share(sums: Sequence[float]) -> float:
    """Return the share of tokens that are left out for their entropy alone, counted in every epoch."""
    return _update_share(sums, Sum.ENTROPY_MASKED)


def _update_share(sums: Sequence[float], which: Sum) -> float:
    return sums[which] / sums[Sum.UPDATE_TOKENS] if sums[Sum.UPDATE_TOKENS] > 0 else 0.0


def effective_sample_share(sums: Sequence[float]) -> float:
    """Return (sum of importance weights)^2 / (N sum of their squares): 1 when all are equal."""
    spread = sums[Sum.TOKENS] * sums[Sum.IMPORTANCE_WEIGHT_SQUARED]
    return sums[Sum.IMPORTANCE_WEIGHT] ** 2 / spread if spread > 0 and math.isfinite(spread) else 0.0
