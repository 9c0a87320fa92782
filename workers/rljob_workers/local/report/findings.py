"""What is notable in a run, each with the section of the page to look at. Pure; bounds are those of docs/tuning.md."""

import dataclasses
import math
import statistics
from collections.abc import Iterator, Sequence

from rljob_api import enums, learning
from rljob_workers.local.report import summary
from rljob_workers.local.rundir import history, journal

REWARD, EVALUATION, STALENESS = "Reward per step", "Evaluation", "Staleness"
WAITS, UPDATES, GAP, THROUGHPUT, RESTARTS = (
    "Who waits", "Weight updates", "Log-probability gap", "Throughput", "Restarts",
)  # fmt: skip
_FIRST, _LAST = 3, 5
# Fewer steps say nothing of a trend.
_ENOUGH_STEPS = _FIRST + _LAST
_WAITS_LONG, _STALE_MANY, _FAILED_MANY, _PAUSE_LONG = 0.3, 0.05, 0.01, 0.1
# Nats.
_GAP_WIDE = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One sentence, and the title of the section that shows it."""

    section: str
    sentence: str


def findings(run: history.Run, numbers: summary.Summary, entries: Sequence[journal.Entry]) -> tuple[Finding, ...]:
    """Return what is notable, in the order of the page; nothing of a run without steps."""
    if not run.steps:
        return ()
    parts = (
        _reward(run),
        _evaluation(run),
        _stale(numbers),
        _lengths(run),
        _waits(numbers),
        _pause(run, numbers),
        _gap(run),
    )
    return tuple(finding for several in (*parts, _failures(numbers), _restarts(entries)) for finding in several)


def _reward(run: history.Run) -> Iterator[Finding]:
    rewards = run.rewards
    if not rewards:
        return
    # A teacher has something to say of every answer, whatever its reward.
    taught = any(enums.StepStat.TEACHER_KL in step.stats for step in run.rl_steps[-_LAST:])
    if not taught and not any(rewards):
        yield Finding(REWARD, "No answer was ever right: there is nothing to learn from.")
    elif not taught and all(step.reward_std == 0.0 for step in run.rl_steps[-_LAST:]):
        yield Finding(REWARD, "All answers of a step get the same reward by now: nothing is left to learn from.")
    elif len(rewards) >= _ENOUGH_STEPS:
        first, last = statistics.fmean(rewards[:_FIRST]), statistics.fmean(rewards[-_LAST:])
        if last <= first:
            yield Finding(REWARD, f"The reward does not rise: {first:.3f} in the beginning, {last:.3f} in the end.")


def _evaluation(run: history.Run) -> Iterator[Finding]:
    for suite in sorted({result.suite for result in run.evaluations}):
        results = [result for result in run.evaluations if result.suite == suite]
        first, last = results[0], results[-1]
        # Two standard errors of a share of n right answers.
        noise = 2 * math.sqrt(first.accuracy * (1 - first.accuracy) / first.n) if first.n else 0.0
        if last.step > first.step and last.accuracy < first.accuracy - noise:
            change = f"from {first.accuracy:.1%} to {last.accuracy:.1%}"
            yield Finding(EVALUATION, f"{suite} fell {change}: what is rewarded is not what is wanted.")


def _stale(numbers: summary.Summary) -> Iterator[Finding]:
    counts = numbers.trajectories
    share = counts.stale / max(1, counts.accepted + counts.stale)
    if share > _STALE_MANY:
        yield Finding(STALENESS, f"{share:.0%} of the trajectories were thrown away because they were too old.")


def _lengths(run: history.Run) -> Iterator[Finding]:
    concern = learning.length_selection(run.answers, run.answer_tokens)
    if concern is not None:
        yield Finding(STALENESS, f"{concern.message[0].upper()}{concern.message[1:]}.")


def _waits(numbers: summary.Summary) -> Iterator[Finding]:
    trainer, rollout = numbers.wait_share.trainer, numbers.wait_share.rollout
    if trainer > _WAITS_LONG and rollout > _WAITS_LONG:
        yield Finding(
            WAITS, f"Both sides wait, the trainer {trainer:.0%} and the rollouts {rollout:.0%} of their time."
        )
    elif trainer > _WAITS_LONG:
        yield Finding(WAITS, f"The trainer waits {trainer:.0%} of its time: rollouts are too slow.")
    elif rollout > _WAITS_LONG:
        yield Finding(WAITS, f"The rollouts wait {rollout:.0%} of their time: the trainer is too slow for them.")


def _pause(run: history.Run, numbers: summary.Summary) -> Iterator[Finding]:
    pause_s, step_s = numbers.weight_updates.pause_s_p50, statistics.median(step.total_s for step in run.steps)
    if pause_s is not None and step_s > 0 and pause_s > _PAUSE_LONG * step_s:
        yield Finding(UPDATES, f"A new version stops generation for {pause_s:.2f} s of a step's {step_s:.1f} s.")


def _gap(run: history.Run) -> Iterator[Finding]:
    gaps = [step.logprob_gap for step in run.steps if step.logprob_gap is not None]
    if gaps and statistics.median(gaps) > _GAP_WIDE:
        median = statistics.median(gaps)
        yield Finding(GAP, f"Engine and trainer differ by {median:.3f} nats a token in the median.")


def _failures(numbers: summary.Summary) -> Iterator[Finding]:
    counts = numbers.trajectories
    share = counts.infra_failed / max(1, counts.accepted + counts.infra_failed)
    if share > _FAILED_MANY:
        yield Finding(THROUGHPUT, f"{share:.0%} of the trajectories failed for reasons that are not theirs.")


def _restarts(entries: Sequence[journal.Entry]) -> Iterator[Finding]:
    if count := len(journal.restarts(entries)):
        yield Finding(RESTARTS, f"{count} process{'es' if count > 1 else ''} were restarted.")
