"""Supervised steps: the mean negative log-probability of the answers' tokens, over all tokens of the step.

    L = - (1 / tokens) * sum over answers and their tokens of log pi(token)

That is REINFORCE with an advantage of 1 for every token, no weight between policies and a mean over tokens, which is
how the learner gets it: one place where rows are packed, spread over ranks and split into micro-batches. What compares
policies means nothing there, and is not reported.
"""

from collections.abc import Mapping

from rljob_api import enums
from rljob_api.manifest.algorithm import AlgorithmSpec
from rljob_api.manifest.base import with_parts
from rljob_api.manifest.job import JobSpec

Stat = enums.StepStat

# The advantages come ready (docs/design/algorithms.md#s-5): REINFORCE reads them as they are.
_ALGORITHM = AlgorithmSpec.model_validate(
    {
        "groupSize": 1,
        "loss": {
            "type": "reinforce",
            "aggregation": "TokenMean",
            "rolloutCorrection": {"mode": "None", "weighting": "None"},
        },
    }
)
_COMPARING = ("mismatch/", "behavior/", "adv/", "policy/ratio", "policy/clip", "policy/approx_kl")


def spec_of(spec: JobSpec) -> JobSpec:
    """Return the manifest as a supervised step reads it: this loss, one update, the learning rate of spec.sft."""
    assert spec.sft is not None, "a run without spec.sft has no supervised steps"
    optimizer = with_parts(spec.trainer.optimizer, learning_rate=spec.sft.learning_rate)
    return with_parts(spec, algorithm=_ALGORITHM, trainer=with_parts(spec.trainer, optimizer=optimizer))


def measured(stats: Mapping[Stat, float]) -> dict[Stat, float]:
    """Return the statistics of a step that mean something without a policy that sampled."""
    return {stat: value for stat, value in stats.items() if not stat.startswith(_COMPARING)}
