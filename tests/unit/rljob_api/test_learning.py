"""What is said of how a run learns."""

import dataclasses
import json
import pathlib
import random
from collections.abc import Iterable

import pytest

from rljob_api import enums, learning
from rljob_testing.diverging import told

TRAINED, STALE, CANCELLED = enums.AnswerFate.TRAINED, enums.AnswerFate.STALE, enums.AnswerFate.CANCELLED


@pytest.mark.parametrize(
    ("mean_of_stale", "said"),
    [(100, False), (120, False), (200, True), (20, True)],
    ids=["as long", "a little longer", "long answers are lost", "short answers are lost"],
)
def test_a_mean_length_that_selection_moved_is_told_with_what_to_do(mean_of_stale: int, said: bool) -> None:
    """800 of 1,000 answers are trained, of 100 tokens in the mean."""
    answers, tokens = {TRAINED: 800, STALE: 200}, {TRAINED: 80_000, STALE: 200 * mean_of_stale}
    concern = learning.length_selection(answers, tokens)
    assert (concern is not None) is said
    if concern is not None:
        assert concern.reason == "LengthSelection"
        assert concern.message.startswith("trained answers have 100.0 tokens in the mean, generated ones ")
        assert "spec.async.onStale to Mask" in concern.message


def test_cancelled_answers_have_no_length_and_are_told_by_their_number() -> None:
    concern = learning.length_selection({TRAINED: 900, CANCELLED: 100}, {TRAINED: 90_000})
    assert concern is not None
    assert concern.message.startswith("10% of the answers were cancelled while they were generated")
    assert learning.length_selection({TRAINED: 970, CANCELLED: 30}, {TRAINED: 97_000}) is None


@pytest.mark.parametrize("num_trained", [0, 199])
def test_nothing_is_said_of_a_few_answers(num_trained: int) -> None:
    assert learning.length_selection({TRAINED: num_trained, STALE: 500}, {TRAINED: 10, STALE: 50_000}) is None


def test_what_the_filter_rejects_is_not_a_selection_by_age() -> None:
    filtered = enums.AnswerFate.FILTERED
    assert learning.length_selection({TRAINED: 500, filtered: 500}, {TRAINED: 5_000, filtered: 500_000}) is None


CURVES = pathlib.Path(__file__).parents[3] / "docs/learning_curves.jsonl"
HEALTHY = learning.Point(step=0, reward=0.5, error=0.03, entropy=1.0, kl=0.002, grad_norm=0.5, length=100.0)


def run_of(points: Iterable[learning.Point]) -> list[learning.Point]:
    return [dataclasses.replace(point, step=step) for step, point in enumerate(points, start=1)]


def changed(**values: float) -> learning.Point:
    return dataclasses.replace(HEALTHY, **values)


def test_a_reward_that_falls_to_nothing_is_told_within_three_steps_with_what_to_do() -> None:
    ((step, message), *_) = told(run_of([HEALTHY] * 10 + [changed(reward=0.0)] * 5))
    assert step <= 13
    assert message.startswith("the mean reward is 0.000, and was 0.500 at step 5")
    assert message.endswith(
        ": lower spec.trainer.optimizer.learningRate, 0.0002, and continue from the checkpoint of step 4"
        " (spec.resumeFrom)"
    )


@pytest.mark.parametrize(
    ("symptom", "sentence"),
    [
        ({"entropy": 0.1}, "the entropy went from 1.00 to 0.10 nats"),
        ({"entropy": 6.0}, "the entropy went from 1.00 to 6.00 nats"),
        ({"grad_norm": 50.0}, "the norm of the gradient went from 0.5 to 50"),
        ({"length": 400.0}, "answers went from 100 to 400 tokens"),
        ({"kl": 0.7}, "the distance from the policy that sampled went from 0.002 to 0.700 nats a token"),
    ],
)
def test_half_of_the_reward_and_one_symptom_are_a_divergence_and_neither_is_alone(
    symptom: dict[str, float], sentence: str
) -> None:
    assert told(run_of([HEALTHY] * 10 + [changed(**symptom)] * 5)) == []
    assert told(run_of([HEALTHY] * 10 + [changed(reward=0.22)] * 5)) == []
    both = told(run_of([HEALTHY] * 10 + [changed(reward=0.22, **symptom)] * 5))
    assert sentence in both[-1][1]


def test_two_symptoms_tell_before_the_reward_falls() -> None:
    found = told(run_of([HEALTHY] * 10 + [changed(entropy=5.0, grad_norm=40.0)] * 3))
    assert found[0][0] <= 13


def test_a_distance_beyond_all_measure_tells_before_there_are_best_steps() -> None:
    ((step, message), *_) = told(run_of([changed(kl=0.0), *[changed(kl=1.5)] * 3]))
    assert step == 4
    assert message.startswith(
        "the distance from the policy that sampled is above 1.5 nats a token, and was 0.000: lower"
    )


def test_one_step_with_a_token_that_is_most_of_its_distance_tells_nothing() -> None:
    assert told(run_of([HEALTHY] * 10 + [changed(kl=40.0)] + [HEALTHY] * 5)) == []


def test_an_engine_that_disagrees_from_the_first_step_on_is_no_divergence() -> None:
    assert told(run_of([changed(kl=1.5)] * 12)) == []


def test_a_collapse_a_thousand_steps_after_the_best_is_told() -> None:
    """The reward ebbs away slowly: no twenty steps show it."""
    points = run_of(changed(reward=0.5 * 0.998**step, entropy=0.998**step) for step in range(1500))
    assert told(points)


def test_rewards_below_zero_have_their_own_floor() -> None:
    falling = run_of([changed(reward=-0.2)] * 10 + [changed(reward=-0.9)] * 5)
    assert told(falling, lowest=-1.0)
    assert told(run_of([changed(reward=-0.2)] * 10 + [changed(reward=-0.5)] * 5), lowest=-1.0) == []


def test_a_step_that_measured_nothing_else_is_no_symptom() -> None:
    bare = learning.Point(step=0, reward=0.5)
    assert told(run_of([HEALTHY] * 10 + [bare] * 5)) == []


@pytest.mark.parametrize("seed", range(20))
def test_noise_of_a_small_batch_is_no_divergence(seed: int) -> None:
    """16 prompts: the reward of a step varies by a third of itself, the other measures by as much."""
    rng = random.Random(seed)

    def noisy(level: float) -> learning.Point:
        around = {
            name: getattr(HEALTHY, name) * rng.lognormvariate(0, 0.3) for name in ("entropy", "grad_norm", "length")
        }
        return changed(reward=max(0.0, rng.gauss(level, 0.1)), error=0.1, **around)

    assert told(run_of(noisy(0.1 + 0.4 * min(1.0, step / 40)) for step in range(120))) == []


@pytest.mark.parametrize("line", CURVES.read_text(encoding="utf-8").splitlines(), ids=lambda line: line[9:90])
def test_no_stored_run_is_called_diverged(line: str) -> None:
    curve = json.loads(line)["curve"]
    points = run_of(learning.Point(step=0, reward=step["reward"], error=0.05) for step in curve)
    assert told(points) == []


def test_the_reward_of_a_step_is_that_of_all_answers_where_a_filter_left_some_out() -> None:
    trained = {"reward_mean": 0.4, "reward_std": 0.5, "groups": 25}
    found = learning.point_of(7, {**trained, "sampled_reward_mean": 0.8, "sampled_reward_std": 0.25}, {})
    assert (found.reward, found.error) == (0.8, 0.05)


def test_a_point_holds_what_a_step_recorded() -> None:
    summary = {"reward_mean": 0.4, "reward_std": 0.5, "groups": 25, "response_tokens_mean": 80.0}
    found = learning.point_of(7, summary, {enums.StepStat.ENTROPY: 0.9, enums.StepStat.GRAD_NORM: 2.0})
    assert found == learning.Point(step=7, reward=0.4, error=0.1, entropy=0.9, grad_norm=2.0, length=80.0)
