"""What is wrong with how a run learns, from what it counted and measured. Pure: status, report and tests ask it."""

import dataclasses
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rljob_api import enums, types
from rljob_api.conditions import LEARNING_DIVERGED

LENGTH_SELECTION = "LengthSelection"
# Mean length of trained answers over that of all answers of which some are trained: what is usual.
LENGTH_RATIO = (0.95, 1.05)
_CANCELLED_MANY = 0.05
_ENOUGH_ANSWERS = 200


def length_selection(answers: Mapping[str, int], tokens: Mapping[str, int]) -> types.Concern | None:
    """Return what is to be said where long or short answers are trained less often; None where they are not.

    answers, tokens: how many by fate (`enums.AnswerFate`), and their sampled tokens. Filtered answers are left out of
    the comparison: they are chosen by their rewards. Of cancelled ones only the number is known.
    """
    trained, stale, cancelled = (
        answers.get(fate, 0) for fate in (enums.AnswerFate.TRAINED, enums.AnswerFate.STALE, enums.AnswerFate.CANCELLED)
    )
    if trained < _ENOUGH_ANSWERS:
        return None
    remedy = "set spec.async.onStale to Mask, which trains every answer, or raise spec.async.maxOffPolicySteps"
    share = cancelled / (trained + stale + cancelled)
    if share > _CANCELLED_MANY:
        sentence = f"{share:.0%} of the answers were cancelled while they were generated, the long ones first: {remedy}"
        return types.Concern(reason=LENGTH_SELECTION, message=sentence)
    mean = tokens.get(enums.AnswerFate.TRAINED, 0) / trained
    overall = (tokens.get(enums.AnswerFate.TRAINED, 0) + tokens.get(enums.AnswerFate.STALE, 0)) / (trained + stale)
    if LENGTH_RATIO[0] <= mean / max(overall, 1e-9) <= LENGTH_RATIO[1]:
        return None
    sentence = f"trained answers have {mean:.1f} tokens in the mean, generated ones {overall:.1f}: {remedy}"
    return types.Concern(reason=LENGTH_SELECTION, message=sentence)


# Steps of which the mean is taken: for the best of a run, and for where it is now.
BEST_STEPS, RECENT_STEPS = 5, 3
# Share of what the best steps were above the lowest reward: lost alone, and lost with a symptom alongside.
_LOST_ALONE, _LOST_WITH_SYMPTOM = 0.75, 0.5
# Standard errors that a fall of the reward must exceed.
_ERRORS = 4.0
# Nats: entropies closer than this are not called apart, and a distance below it is none.
_ENTROPY_APART, _KL_LARGE = 0.3, 0.1
# Nats a token: a distance that no run that learns has. It tells alone, and before there are best steps to compare with.
_KL_LOST = 1.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What a step, or some in the mean, measured. reward: mean, raw; error: its standard error; entropy, kl: nats;
    length: sampled tokens of an answer. None: not measured.
    """

    step: int
    reward: float
    error: float = 0.0
    entropy: float | None = None
    kl: float | None = None
    grad_norm: float | None = None
    length: float | None = None


def reward_of(summary: Mapping[str, Any]) -> tuple[float, float]:
    """Return mean and standard deviation of the raw reward that a step's record shows: of all graded answers.

    `data.filterGroups` leaves out what is solved, so that the mean of the trained ones (`reward_mean`) stands still
    while the policy learns. Records of before have that one alone.
    """
    prefix = "sampled_" if "sampled_reward_mean" in summary else ""
    return summary[f"{prefix}reward_mean"], summary.get(f"{prefix}reward_std", 0.0)


def point_of(step: int, summary: Mapping[str, Any], stats: Mapping[str, float]) -> Point:
    """Return the point of a step's record: the summary of its batch, and what the trainer measured."""
    mean_reward, deviation = reward_of(summary)
    return Point(
        step=step,
        reward=mean_reward,
        error=deviation / math.sqrt(max(1, summary.get("groups", 1))),
        entropy=stats.get(enums.StepStat.ENTROPY),
        kl=stats.get(enums.StepStat.BEHAVIOR_KL),
        grad_norm=stats.get(enums.StepStat.GRAD_NORM),
        length=summary.get("response_tokens_mean"),
    )


def mean(points: Sequence[Point]) -> Point:
    """Return one point for several: means of what was measured, the step of the last one."""
    fields = {
        name: [value for point in points if (value := getattr(point, name)) is not None]
        for name in ("reward", "entropy", "kl", "grad_norm", "length")
    }
    return Point(
        step=points[-1].step,
        error=math.sqrt(sum(point.error**2 for point in points)) / len(points),
        **{name: statistics.fmean(values) for name, values in fields.items() if values},
    )


def best(before: Point | None, points: Sequence[Point]) -> Point | None:
    """Return the better one of the best mean before and that of the last `BEST_STEPS` points, if there are as many."""
    if len(points) < BEST_STEPS:
        return before
    newest = mean(points[-BEST_STEPS:])
    return newest if before is None or newest.reward > before.reward else before


def divergence(
    best: Point | None, points: Sequence[Point], *, lowest: float, learning_rate: float, checkpoint: int | None
) -> types.Concern | None:
    """Return what is to be said of a run that loses what it had; None of one that does not.

    best: its best steps in the mean; points: its last ones; lowest: the smallest reward that a step had, 0 if none was
    below. checkpoint: the step of the newest one that is not after the best steps. A run is called diverged where
    three quarters of its best reward are gone, or half of it with a symptom alongside, or where two symptoms
    come together before the reward falls, or where every recent step is further than `_KL_LOST` from the policy that
    sampled, which a far too high learning rate is in its first steps. Symptoms compare the last steps with the best
    ones: entropy, the size of the gradient, the length of the answers, the distance from the policy that sampled.
    """
    if len(points) < RECENT_STEPS:
        return None
    recent = mean(points[-RECENT_STEPS:])
    facts = list(_lost(best, recent, lowest)) or list(_far(points))
    if not facts:
        return None
    again = "start again" if checkpoint is None else f"continue from the checkpoint of step {checkpoint}"
    remedy = f"lower spec.trainer.optimizer.learningRate, {learning_rate:g}, and {again} (spec.resumeFrom)"
    return types.Concern(reason=LEARNING_DIVERGED, message=f"{'; '.join(facts)}: {remedy}")


def _lost(best: Point | None, recent: Point, lowest: float) -> Iterator[str]:
    """Yield what was lost since the best steps, if there are any and it is enough."""
    if best is None or recent.step - best.step < RECENT_STEPS:
        return
    symptoms = list(_symptoms(best, recent))
    height, fall = best.reward - min(0.0, lowest), best.reward - recent.reward
    lost = fall / height if height > 0 and fall > _ERRORS * math.hypot(best.error, recent.error) else 0.0
    if lost >= (_LOST_WITH_SYMPTOM if symptoms else _LOST_ALONE) or len(symptoms) >= 2:
        yield f"the mean reward is {recent.reward:.3f}, and was {best.reward:.3f} at step {best.step}"
        yield from symptoms


def _far(points: Sequence[Point]) -> Iterator[str]:
    """Yield the distance where each recent step is beyond all measure, and not every one was: an engine that disagrees
    from the start is no divergence. Of each, since one token can be most of a step's mean.
    """
    distances = [point.kl for point in points if point.kl is not None]
    near, recent = min(distances, default=0.0), min(point.kl or 0.0 for point in points[-RECENT_STEPS:])
    if recent > _KL_LOST and near < _KL_LARGE:
        yield f"the distance from the policy that sampled is above {recent:.1f} nats a token, and was {near:.3f}"


def _symptoms(best: Point, recent: Point) -> Iterator[str]:
    if best.entropy is not None and recent.entropy is not None:
        apart = abs(recent.entropy - best.entropy) > _ENTROPY_APART
        if apart and not 0.2 * best.entropy <= recent.entropy <= 2.5 * best.entropy:
            yield f"the entropy went from {best.entropy:.2f} to {recent.entropy:.2f} nats"
    if best.grad_norm and recent.grad_norm is not None and recent.grad_norm > 10 * best.grad_norm:
        yield f"the norm of the gradient went from {best.grad_norm:.3g} to {recent.grad_norm:.3g}"
    if best.length and recent.length is not None and not 0.4 * best.length <= recent.length <= 2.5 * best.length:
        yield f"answers went from {best.length:.0f} to {recent.length:.0f} tokens"
    if best.kl is not None and recent.kl is not None and recent.kl > max(_KL_LARGE, 10 * best.kl):
        yield f"the distance from the policy that sampled went from {best.kl:.3f} to {recent.kl:.3f} nats a token"
