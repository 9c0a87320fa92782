"""summary.json: a run in numbers. Pure: the coordinator's history, memory peaks and wall time in, one model out.

Definitions. Staleness: trainer step of the batch minus step of the oldest token's version, per consumed group (max,
histogram) and per token (mean). Wait share of the trainer: its waiting seconds over the seconds of its steps, without
the first one, whose waiting is start-up (engine, first evaluation); of the rollouts: slot-seconds without generation
over slot-seconds. Throughput: tokens for training over the time in which something was generated or trained, so without
start-up and without pauses between two segments. Prefixes: what rows of a group begin with alike is computed once by
the trainer, and what calls to an engine begin with alike is found in its cache. Percentiles are nearest-rank.
"""

import math
from collections.abc import Mapping, Sequence

import pydantic

from rljob_workers.local.rundir import history, intervals
from rljob_workers.runtime import judge_costs


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class EvaluationPart(_Part):
    """One suite at one step. accuracy: share of prompts with score exactly 1."""

    suite: str
    step: int
    accuracy: float
    n: int


class StalenessPart(_Part):
    """In steps; histogram: consumed groups by age."""

    max: int
    mean: float
    histogram: dict[str, int]


class WeightUpdatesPart(_Part):
    """Weight versions applied by rollouts. None where there was none."""

    count: int
    pause_s_p50: float | None
    pause_s_max: float | None
    sync_s_p50: float | None
    bytes_p50: int | None


class TrajectoriesPart(_Part):
    """Submitted trajectories by what became of them."""

    accepted: int
    stale: int
    infra_failed: int
    filtered: int


class WaitSharePart(_Part):
    """Share of time lost waiting, 0..1."""

    trainer: float
    rollout: float


class ThroughputPart(_Part):
    """Tokens per second."""

    generated_tokens_per_s: float
    trained_tokens_per_s: float


class PrefixesPart(_Part):
    """computed_per_unique_token: of the trainer, 1 where each token of a group's tree was computed once, more where
    trees were divided among micro-batches. saved_share: tokens of rows that were not computed since other rows begin
    with them, 0..1. cache_hit_share: tokens of prompts that the engines' prefix caches had, over those that earlier
    calls began with, 0..1. None of nothing.
    """

    computed_per_unique_token: float | None
    saved_share: float | None
    cache_hit_share: float | None


class Summary(_Part):
    """The file. `reward_mean` and `logprob_gap_mean` (nats) have one value per step, from step 1 on, None of a
    supervised one.

    logprob_gap_mean: mean distance of the log-probabilities of all sampled tokens between the trainer's weights at the
    step's start and the engine when it sampled them, so with their age; None only while a critic alone is trained.
    Engine against trainer on the same weights is in the history (`mismatch/abs_diff`). judges: their costs, by reward.
    """

    steps: int
    wall_s: float
    reward_mean: list[float | None]
    evaluation: list[EvaluationPart]
    staleness: StalenessPart
    weight_updates: WeightUpdatesPart
    trajectories: TrajectoriesPart
    wait_share: WaitSharePart
    throughput: ThroughputPart
    prefixes: PrefixesPart
    logprob_gap_mean: list[float | None]
    peak_rss_bytes: dict[str, int]
    judges: dict[str, judge_costs.Cost] = {}


def summarize(
    run: history.Run,
    *,
    wall_s: float,
    peak_rss_bytes: Mapping[str, int],
    judges: Mapping[str, judge_costs.Cost] | None = None,
) -> Summary:
    """Return the summary of what the history shows so far."""
    return Summary(
        steps=len(run.steps),
        wall_s=wall_s,
        reward_mean=[step.reward_mean for step in run.steps],
        evaluation=[EvaluationPart(suite=e.suite, step=e.step, accuracy=e.accuracy, n=e.n) for e in run.evaluations],
        staleness=staleness(run.rl_steps),
        weight_updates=_weight_updates(run.syncs),
        trajectories=_trajectories(run.trajectories),
        wait_share=WaitSharePart(trainer=trainer_wait_share(run.steps), rollout=rollout_wait_share(run.steps)),
        throughput=throughput(run),
        prefixes=_prefixes(run),
        logprob_gap_mean=[step.logprob_gap_all for step in run.steps],
        peak_rss_bytes=dict(peak_rss_bytes),
        judges=dict(judges or {}),
    )


def staleness(steps: Sequence[history.Step]) -> StalenessPart:
    histogram: dict[int, int] = {}
    for step in steps:
        for age, count in step.staleness.items():
            histogram[age] = histogram.get(age, 0) + count
    tokens = sum(step.tokens_trained for step in steps)
    aged = sum(step.staleness_token_mean * step.tokens_trained for step in steps)
    return StalenessPart(
        max=max((age for age, count in histogram.items() if count), default=0),
        mean=aged / tokens if tokens else 0.0,
        histogram={str(age): histogram[age] for age in sorted(histogram)},
    )


def _weight_updates(syncs: Sequence[history.Sync]) -> WeightUpdatesPart:
    pauses = [sync.pause_s for sync in syncs]
    size = percentile([sync.num_bytes for sync in syncs], 0.5)
    return WeightUpdatesPart(
        count=len(syncs),
        pause_s_p50=percentile(pauses, 0.5),
        pause_s_max=max(pauses, default=None),
        sync_s_p50=percentile([sync.total_s for sync in syncs], 0.5),
        bytes_p50=None if size is None else int(size),
    )


def _trajectories(counts: Mapping[str, int]) -> TrajectoriesPart:
    return TrajectoriesPart(
        accepted=counts.get("accepted", 0),
        stale=counts.get("stale", 0),
        infra_failed=counts.get("infra_failure", 0),
        filtered=counts.get("filtered", 0),
    )


def _prefixes(run: history.Run) -> PrefixesPart:
    computed, unique, rows = (
        sum(step.packed_tokens.get(kind, 0) for step in run.steps) for kind in ("computed", "unique", "rows")
    )
    repeated, cached = (run.prefix_tokens.get(kind, 0) for kind in ("repeated", "cached"))
    return PrefixesPart(
        computed_per_unique_token=computed / unique if unique else None,
        saved_share=1.0 - computed / rows if rows else None,
        cache_hit_share=cached / repeated if repeated else None,
    )


def trainer_wait_share(steps: Sequence[history.Step]) -> float:
    """Return the trainer's waiting seconds over the seconds of its steps, 0 if there is no second step."""
    later = steps[1:]
    total_s = sum(step.total_s for step in later)
    return sum(step.wait_s for step in later) / total_s if total_s > 0 else 0.0


def rollout_wait_share(steps: Sequence[history.Step]) -> float:
    """Return the mean of the steps' rollout wait shares, weighted by their seconds."""
    measured_steps = [step for step in steps if step.rollout_wait_share is not None]
    total_s = sum(step.total_s for step in measured_steps)
    if total_s <= 0:
        return 0.0
    return sum((step.rollout_wait_share or 0.0) * step.total_s for step in measured_steps) / total_s


def throughput(run: history.Run) -> ThroughputPart:
    """Return tokens per second of the time in which the run generated or trained."""
    busy_s = intervals.length_s([*run.training_spans(), *run.generating_spans()])
    if busy_s <= 0:
        return ThroughputPart(generated_tokens_per_s=0.0, trained_tokens_per_s=0.0)
    return ThroughputPart(
        generated_tokens_per_s=sum(step.tokens_generated for step in run.steps) / busy_s,
        trained_tokens_per_s=sum(step.tokens_trained for step in run.steps) / busy_s,
    )


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the nearest-rank percentile, None of nothing."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
