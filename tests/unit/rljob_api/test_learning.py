"""What is said of how a run learns."""

import pytest

from rljob_api import enums, learning

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
