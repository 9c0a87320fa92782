"""The entropy bonus that follows a target, and the choice of tokens by their entropy. Pure.

Adaptive coefficient: Skywork-OR1, arXiv 2505.22312; a dual update by the sign of the gap, as SAC's
(arXiv 1812.05905) is by the gap itself:

    c_(k+1) = clamp(c_k + delta sign(target - H_k), 0, maxCoef)        alpha_(k+1) = c_(k+1) [H_k <= target]

H_k: entropy of step k, nats a token, over all ranks. Deviation: the step before decides, since this step's entropy is
known once its forwards are done.

Top quantile: "Beyond the 80/20 rule", arXiv 2506.01939: the policy loss is over the tokens whose entropy is among the
highest; denominators stay those of all tokens, as there.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Self

import torch

from rljob_api.manifest.algorithm import AlgorithmSpec, EntropySpec
from rljob_workers.trainer.algorithms import thresholds

# A share times a number of tokens is a whole number up to this, whatever the last bit of the product.
_DIGITS = 6


@dataclasses.dataclass(slots=True)
class AdaptiveCoefficient:
    """c, and H of the step before, None before there was one; both go into checkpoints. Nats."""

    coef: float
    entropy: float | None = None

    @classmethod
    def of(cls, algorithm: AlgorithmSpec, *, coef: float | None = None, entropy: float | None = None) -> Self:
        """Return where a run begins; with a target, where a checkpoint with `coef` and `entropy` left it."""
        if coef is None or algorithm.entropy.target is None:
            return cls(algorithm.loss.entropy_coef)
        return cls(coef, entropy)

    def applied(self, spec: EntropySpec) -> float:
        """Return alpha, the coefficient of the next step's bonus; before any entropy is known, c itself."""
        if spec.target is not None and self.entropy is not None and self.entropy > spec.target:
            return 0.0
        return self.coef

    def follow(self, entropy: float | None, spec: EntropySpec) -> None:
        """Take a step's entropy; without a target, or where nothing was measured, everything stays."""
        if spec.target is None or entropy is None or not math.isfinite(entropy):
            return
        direction = (entropy < spec.target) - (entropy > spec.target)
        self.coef = min(spec.max_coef, max(0.0, self.coef + direction * spec.delta))
        self.entropy = entropy


def cuts(parts: Sequence[torch.Tensor], top_quantile: float, *, total: thresholds.Reduce) -> list[float]:
    """Return, per minibatch, the lowest entropy among the share of tokens with the highest. Equal ones stay together.

    parts: this rank's entropies of each minibatch, in any shape of micro-batches. total: over ranks, collective. The
    cut is the k-th largest of the minibatch's N entropies, k = ceil(top_quantile N).
    """
    entropies = [comparable(part) for part in parts]
    least = [
        math.ceil(round(top_quantile * count, _DIGITS)) for count in total([float(len(part)) for part in entropies])
    ]

    def fits(numbers: Sequence[float]) -> list[bool]:
        above = total([float((part >= number).sum()) for part, number in zip(entropies, numbers, strict=True)])
        return [count >= needed for count, needed in zip(above, least, strict=True)]

    return thresholds.highest([0.0] * len(entropies), fits)


def comparable(entropies: torch.Tensor) -> torch.Tensor:
    """Return entropies [N] that can be compared with a cut, fp64: from 0 on; what is not finite counts as 0."""
    return torch.nan_to_num(entropies.double(), nan=0.0, posinf=0.0, neginf=0.0).clamp(min=0.0)
