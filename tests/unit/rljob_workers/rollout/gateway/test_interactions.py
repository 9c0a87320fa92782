import dataclasses

import pytest

from rljob_api import errors
from rljob_workers.rollout import generation
from rljob_workers.rollout.gateway import conversation, interactions

EOS = 2


def said(*texts: str) -> tuple[conversation.Message, ...]:
    return tuple(
        conversation.Message(role="assistant" if index % 2 else "user", content=text)
        for index, text in enumerate(texts)
    )


def asked(*texts: str) -> conversation.Call:
    return conversation.Call(messages=said(*texts))


def call(
    made: interactions.Interactions, *texts: str, answer: str | None = "A", prompt_ids: tuple[int, ...] = (5, 6)
) -> interactions.Interaction:
    """A call with these messages, answered unless `answer` is None."""
    begun = made.begin(asked(*texts), prompt_ids=prompt_ids, place=made.place(asked(*texts)))
    if answer is not None:
        made.finish(
            begun,
            output=conversation.Message(role="assistant", content=answer),
            result=generation.GenerationResult(
                output_ids=(65, EOS), logprobs=(-0.5, -0.5), versions=(1, 1), stop_reason="stop"
            ),
        )
    return begun


@pytest.mark.covers("workflows 7")
def test_a_parent_is_the_longest_call_whose_messages_and_answer_come_first() -> None:
    made = interactions.Interactions()
    first = call(made, "hi", answer="A")
    second = call(made, "hi", "A", "more", answer="B", prompt_ids=(5, 6, 65, EOS, 7))
    place = made.place(asked("hi", "A", "more", "B", "end"))
    assert (place.base, place.num_shared, place.forked) == (second, 4, False)
    assert second.parent is first
    assert made.place(asked("other")).base is None
    assert made.num_forks == 0


@pytest.mark.covers("workflows 7")
@pytest.mark.parametrize(
    ("texts", "base", "num_shared"),
    [
        (("hi", "not A", "more"), None, 0),
        (("hi", "A", "more", "not B", "end"), 0, 2),
        (("hi", "A", "more", "B", "and", "not C", "end"), 1, 4),
        (("hi", "A", "no more", "B", "end"), 0, 2),
    ],
)
def test_a_rewritten_answer_makes_a_fork_at_any_depth(
    texts: tuple[str, ...], base: int | None, num_shared: int
) -> None:
    made = interactions.Interactions()
    calls = [
        call(made, "hi", answer="A", prompt_ids=(5,)),
        call(made, "hi", "A", "more", answer="B", prompt_ids=(5, 65, EOS, 6)),
        call(made, "hi", "A", "more", "B", "and", answer="C", prompt_ids=(5, 65, EOS, 6, 65, EOS, 7)),
    ]
    place = made.place(asked(*texts))
    assert place == interactions.Place(base=None if base is None else calls[base], num_shared=num_shared, forked=True)
    before = () if base is None else calls[base].ids
    fork = made.begin(asked(*texts), prompt_ids=(*before, 9), place=place)
    assert (fork.parent, made.num_forks) == (None, 1)


def test_a_conversation_that_begins_with_an_example_is_no_fork() -> None:
    made = interactions.Interactions()
    call(made, "hi")
    assert made.place(asked("an example", "its answer", "hi")) == interactions.Place()


@pytest.mark.covers("workflows 7")
def test_the_row_of_a_fork_trains_nothing_of_what_it_was_forked_from() -> None:
    made = interactions.Interactions()
    call(made, "hi", answer="A", prompt_ids=(5,))
    call(made, "hi", "A", "more", answer="B", prompt_ids=(5, 65, EOS, 6))
    call(made, "hi", "A", "more", "not B", "end", answer="C", prompt_ids=(5, 65, EOS, 6, 7, 8))
    made.reward(1.0)
    made.discount(1.0)
    whole, fork = made.rows("concat")
    assert (list(whole.tokens), list(whole.loss_mask)) == ([5, 65, EOS, 6, 65, EOS], [0, 1, 1, 0, 1, 1])
    assert (list(fork.tokens), list(fork.loss_mask)) == ([5, 65, EOS, 6, 7, 8, 65, EOS], [0] * 6 + [1, 1])


@pytest.mark.covers("workflows 7")
@pytest.mark.parametrize(
    ("rewards", "factor", "expected"), [([None, None, 10], 0.9, [8.1, 9, 10]), ([1, 2, 3], 0.5, [2.75, 3.5, 3])]
)
def test_rewards_run_back_in_order_of_creation(
    rewards: list[float | None], factor: float, expected: list[float]
) -> None:
    made = interactions.Interactions()
    calls = [call(made, f"question {index}") for index in range(3)]
    made.reward({one.id: reward for one, reward in zip(calls, rewards, strict=True) if reward is not None})
    made.discount(factor)
    assert [one.returns for one in calls] == pytest.approx(expected)
    with pytest.raises(errors.EpisodeError, match="discounted once"):
        made.discount(factor)


@pytest.mark.covers("workflows 7")
def test_a_number_is_the_reward_of_the_last_call_and_no_reward_on_it_counts_0() -> None:
    made = interactions.Interactions()
    first, last = call(made, "a"), call(made, "b")
    made.reward(2)
    assert (first.reward, last.reward) == (None, 2.0)
    made = interactions.Interactions()
    first, last = call(made, "a"), call(made, "b")
    made.reward({first.id: 1.0})
    assert (first.reward, last.reward) == (1.0, 0.0)


@pytest.mark.covers("workflows 7")
@pytest.mark.parametrize("returned", [None, "1", True, float("nan"), {"call-9": 1.0}, {"call-0": "1"}])
def test_another_type_or_an_unknown_id_is_an_error(returned: object) -> None:
    made = interactions.Interactions()
    call(made, "a")
    with pytest.raises(errors.EpisodeError):
        made.reward(returned)


@pytest.mark.covers("workflows 7")
def test_of_repeated_calls_those_without_children_go_and_the_total_is_corrected() -> None:
    made = interactions.Interactions()
    orphan, kept = call(made, "hi", answer="lost"), call(made, "hi", answer="A")
    child = call(made, "hi", "A", "more", prompt_ids=(5, 6, 65, EOS, 7))
    made.reward({orphan.id: 5.0, kept.id: 1.0, child.id: 2.0})
    assert made.drop_retry_orphans() == 1
    assert made.discount(1.0) == 3.0
    assert [one.id for one in made.finished()] == [kept.id, child.id]
    with pytest.raises(errors.EpisodeError, match="before the discount"):
        made.drop_retry_orphans()


@pytest.mark.covers("workflows 7")
def test_of_repeated_calls_without_children_the_latest_stays() -> None:
    made = interactions.Interactions()
    calls = [call(made, "hi", answer=str(index)) for index in range(3)]
    assert made.drop_retry_orphans() == 2
    assert made.finished() == calls[2:]


def test_a_repeat_that_was_never_answered_displaces_no_answered_call() -> None:
    made = interactions.Interactions()
    answered, _ = call(made, "hi"), call(made, "hi", answer=None)
    made.reward(1.0, drop_orphans=True)
    assert made.finished() == [answered]
    assert made.in_flight() == 0
    assert made.discount(1.0) == 1.0
    assert [row.raw_reward for row in made.rows("individual")] == [1.0]


def test_of_repeated_calls_the_one_that_the_agent_rewarded_by_id_stays() -> None:
    made = interactions.Interactions()
    rewarded, _ = call(made, "hi"), call(made, "hi")
    made.reward({rewarded.id: 2.0}, drop_orphans=True)
    assert made.finished() == [rewarded]
    assert made.discount(1.0) == 2.0


def test_a_number_goes_to_the_last_call_that_stays() -> None:
    made = interactions.Interactions()
    call(made, "hi")
    last = call(made, "hi", "A", "more", prompt_ids=(5, 6, 65, EOS, 7))
    call(made, "hi")  # A late repeat of the first call: its twin has a child.
    made.reward(3.0, drop_orphans=True)
    assert made.finished()[-1] is last
    assert last.reward == 3.0


@pytest.mark.covers("workflows 7")
def test_individual_export_is_a_row_per_answered_call_with_its_own_reward() -> None:
    made = interactions.Interactions()
    call(made, "a", prompt_ids=(5,))
    call(made, "b", answer=None)
    call(made, "c", prompt_ids=(7, 8))
    made.reward({"call-0": 1.0, "call-2": 3.0})
    made.discount(0.5)
    first, second = made.rows("individual")
    assert (list(first.tokens), list(second.tokens)) == ([5, 65, EOS], [7, 8, 65, EOS])
    assert (first.reward, first.raw_reward, second.reward) == (2.5, 1.0, 3.0)
    # The ledger takes several rows of a member only if no two share a turn.
    assert [set(row.turn_ids) for row in (first, second)] == [{-1, 0}, {-1, 1}]


@pytest.mark.covers("workflows 7")
def test_concat_export_is_a_row_per_leaf_that_trains_the_whole_chain() -> None:
    made = interactions.Interactions()
    call(made, "hi", answer="A", prompt_ids=(5, 6))
    call(made, "hi", "A", "left", prompt_ids=(5, 6, 65, EOS, 7))
    call(made, "hi", "A", "right", prompt_ids=(5, 6, 65, EOS, 8))
    made.reward({"call-1": 1.0, "call-2": 2.0})
    made.discount(1.0)
    left, right = made.rows("concat")
    assert list(left.tokens) == [5, 6, 65, EOS, 7, 65, EOS]
    assert list(left.loss_mask) == [0, 0, 1, 1, 0, 1, 1]
    assert (left.raw_reward, right.raw_reward, left.num_turns) == (1.0, 2.0, 2)
    assert [sorted(set(row.turn_ids)) for row in (left, right)] == [[-1, 0, 1], [-1, 2, 3]]


@pytest.mark.covers("workflows 7")
def test_a_call_whose_ids_do_not_append_is_a_fork() -> None:
    made = interactions.Interactions()
    call(made, "hi", answer="A", prompt_ids=(5, 6))
    call(made, "hi", "A", "more", prompt_ids=(9, 9))
    made.reward(1.0)
    made.discount(1.0)
    assert [list(row.tokens) for row in made.rows("concat")] == [[5, 6, 65, EOS], [9, 9, 65, EOS]]
    assert made.num_forks == 1


@pytest.mark.covers("workflows 7")
def test_nothing_answered_is_no_row() -> None:
    made = interactions.Interactions()
    call(made, "a", answer=None)
    made.reward(1.0)
    made.discount(1.0)
    assert made.rows("individual") == made.rows("concat") == ()


def test_messages_are_compared_by_role_and_content() -> None:
    (message,) = said("a")
    assert dataclasses.replace(message, role="system") != message
