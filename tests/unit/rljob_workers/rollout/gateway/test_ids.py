"""Trained ids are sampled ids, whatever a client does with the conversation."""

import asyncio
import dataclasses
from collections.abc import Sequence

import hypothesis
import pytest
from hypothesis import strategies as st

from rljob_api import errors, types
from rljob_testing import sampled
from rljob_workers.rollout.episodes import turns
from rljob_workers.rollout.gateway import conversation, episode_calls, interactions

ANSWERS = ("yes", "no", "", " well ", '<tool_call>{"name": "f", "arguments": {"b":  [1]}}</tool_call>')
TOOLS = '[{"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}]'
READER = episode_calls.tool_reader(episode_calls.ProxyConfig(), sampled.PairTokens())


@dataclasses.dataclass(frozen=True)
class Move:
    """What a client does next: goes on from conversation `number`, cut by `cut` messages, with the answers of some
    depth rewritten.
    """

    number: int
    cut: int
    rewritten: int | None
    said: str
    answer: str
    tools: str
    plain: bool


MOVES = st.builds(
    Move, number=st.integers(0, 5), cut=st.integers(0, 3), rewritten=st.none() | st.integers(0, 4),
    said=st.sampled_from(("a", "b", "")), answer=st.sampled_from(ANSWERS), tools=st.sampled_from(("", TOOLS)),
    plain=st.booleans(),
)  # fmt: skip


def chat(number: int, *, answer: str, tools: str = "") -> Move:
    """Go on from conversation `number`."""
    return Move(number=number, cut=0, rewritten=None, said="a", answer=answer, tools=tools, plain=False)


def calls_to(
    model: sampled.PairModel, tokens: sampled.PairTokens, *, template: str, max_model_len: int
) -> episode_calls.EpisodeCalls:
    return episode_calls.EpisodeCalls(
        asker=turns.Asker(tokens=tokens, template=template),
        tool_reader=READER,
        client=turns.EpisodeClient(inner=model, seed=1, max_model_len=max_model_len),
        gconfig=types.Sampling(),
    )


async def played(
    moves: Sequence[Move], tokens: sampled.PairTokens
) -> tuple[episode_calls.EpisodeCalls, sampled.PairModel]:
    """Make the moves of a client, one call each."""
    model = sampled.PairModel()
    calls = calls_to(model, tokens, template="chat", max_model_len=1 << 20)
    chats: list[tuple[conversation.Message, ...]] = [()]
    texts = [""]
    for move in moves:
        model.texts.append(move.answer)
        if move.plain:
            prompt = texts[move.number % len(texts)][: -move.cut or None] + move.said or "x"
            answer = await calls.answer(conversation.Call(prompt=prompt))
            texts.append(prompt + answer.output.content)
            continue
        before = list(chats[move.number % len(chats)])
        del before[max(0, len(before) - move.cut) :]
        if move.rewritten is not None and move.rewritten < len(before):
            before[move.rewritten] = dataclasses.replace(before[move.rewritten], content="rewritten")
        messages = (*before, conversation.Message(role="user", content=move.said))
        answer = await calls.answer(conversation.Call(messages=messages, tools=move.tools))
        chats.append((*messages, answer.output))
    return calls, model


def rows_of(
    moves: Sequence[Move], export: interactions.Export, tokens: sampled.PairTokens
) -> tuple[list[types.Trajectory], sampled.PairModel, episode_calls.EpisodeCalls]:
    calls, model = asyncio.run(played(moves, tokens))
    config = episode_calls.ProxyConfig.model_validate({"export": export, "dropRetryOrphans": False})
    episode = calls.episode(1.0, config)
    assert episode is not None
    return list(episode.rows), model, calls


@pytest.mark.covers("workflows 7")
@hypothesis.given(moves=st.lists(MOVES, min_size=1, max_size=12), export=st.sampled_from(("individual", "concat")))
@hypothesis.settings(max_examples=60)
def test_every_row_has_what_was_sampled_after_the_ids_that_the_engine_was_asked_with(
    moves: list[Move], export: interactions.Export
) -> None:
    rows, model, _ = rows_of(moves, export, sampled.PairTokens())
    assert set(model.check(rows)) == set(range(model.num_tokens))


@pytest.mark.covers("workflows 7")
@hypothesis.given(st.lists(MOVES, min_size=1, max_size=12))
@hypothesis.settings(max_examples=30)
def test_as_individual_rows_every_sampled_token_is_trained_once(moves: list[Move]) -> None:
    rows, model, _ = rows_of(moves, "individual", sampled.PairTokens())
    assert model.check(rows) == dict.fromkeys(range(model.num_tokens), 1)


def test_a_conversation_that_only_grows_is_one_row_whatever_its_length() -> None:
    moves = [chat(index, answer=ANSWERS[index % len(ANSWERS)], tools=TOOLS) for index in range(20)]
    rows, _, calls = rows_of(moves, "concat", sampled.PairTokens())
    assert ([row.num_turns for row in rows], calls.history.num_forks) == ([20], 0)


@pytest.mark.parametrize("prompt", ["question", (5, 6, 7)])
async def test_a_plain_prompt_that_goes_on_keeps_the_sampled_ids(prompt: str | tuple[int, ...]) -> None:
    model = sampled.PairModel(["yes", "no"])
    calls = calls_to(model, sampled.PairTokens(), template="raw", max_model_len=1024)
    await calls.answer(conversation.Call(prompt=prompt))
    (first,) = calls.history.finished()
    after = f"{prompt}yes and" if isinstance(prompt, str) else (*first.ids, 8)
    await calls.answer(conversation.Call(prompt=after))
    second = calls.history.finished()[1]
    assert second.parent is first
    assert second.prompt_ids == first.ids + ((8,) if after[-1] == 8 else tuple(map(ord, " and")))


async def test_a_plain_prompt_that_cuts_an_answer_is_a_fork_with_ids_of_its_own() -> None:
    model = sampled.PairModel(["yes and no", "no"])
    calls = calls_to(model, sampled.PairTokens(), template="raw", max_model_len=1024)
    await calls.answer(conversation.Call(prompt="question"))
    await calls.answer(conversation.Call(prompt="questionyes but"))
    second = calls.history.finished()[1]
    assert (second.parent, calls.history.num_forks) == (None, 1)
    assert second.prompt_ids == sampled.PairTokens().encode("questionyes but")


@pytest.mark.covers("workflows 7")
async def test_where_the_chat_template_appends_no_turns_each_call_is_a_row() -> None:
    class Rewriting(sampled.PairTokens):
        def continuation_ids(self, *_: object, **__: object) -> tuple[int, ...]:
            raise errors.ManifestError("it leaves out earlier thoughts")

    moves = [chat(index, answer="yes") for index in (0, 1)]
    calls, model = await played(moves, Rewriting())
    episode = calls.episode(1.0, episode_calls.ProxyConfig(export="concat"))
    assert episode is not None
    assert [row.num_turns for row in episode.rows] == [1, 1]
    assert (len(model.said), calls.history.num_forks) == (2, 1)
