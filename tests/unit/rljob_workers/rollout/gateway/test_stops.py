"""A stop of a call's own: the text ends before it, and what was sampled, the stop included, is what is trained."""

import anthropic
import openai
import pytest

from rljob_api import types
from rljob_testing import episodes
from rljob_testing import rollout as fakes
from rljob_workers.rollout import generation
from rljob_workers.rollout.episodes import turns
from rljob_workers.rollout.gateway import conversation, episode_calls, server, sessions

STOP = "Observation:"
SAID = f"Action: look\n{STOP} "
HI = conversation.Message(role="user", content="hi")


class StoppingModel:
    """Says `texts` in turn, each up to the stop that it has: the token that completes it may say more, here a space."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts
        self.requests: list[generation.GenerationRequest] = []

    async def generate(self, request: generation.GenerationRequest) -> generation.GenerationResult:
        text = self.texts[len(self.requests)]
        self.requests.append(request)
        matched = next((stop for stop in request.sampling.stop if stop in text), "")
        ids = (*map(ord, text), *(() if matched else (episodes.EOS,)))
        for end in range(1, len(text)):
            # What ends an answer is not told.
            if request.on_tokens is not None and (not matched or matched not in text[:end]):
                request.on_tokens(ids[:end])
        return generation.GenerationResult(
            output_ids=ids, logprobs=(-0.5,) * len(ids), versions=(1,) * len(ids), stop_reason="stop",
            matched_stop=matched,
        )  # fmt: skip


def calls_to(model: StoppingModel, sampling: types.Sampling | None = None) -> episode_calls.EpisodeCalls:
    tokens = fakes.FakeTokens()
    return episode_calls.EpisodeCalls(
        asker=turns.Asker(tokens=tokens, template="raw"),
        tool_reader=episode_calls.tool_reader(episode_calls.ProxyConfig(), tokens),
        client=turns.EpisodeClient(inner=model, seed=1, max_model_len=1024),
        gconfig=sampling or types.Sampling(max_tokens=64),
    )


@pytest.mark.covers("workflows 7")
async def test_a_call_s_own_stop_ends_its_text_and_the_sampled_ids_are_trained_and_gone_on_from() -> None:
    model = StoppingModel(SAID, "so")
    calls = calls_to(model, types.Sampling(max_tokens=64, stop=("END",)))
    first = await calls.answer(conversation.Call(messages=(HI,), stops=(STOP,)))
    assert (first.output.content, first.stopped_by, first.truncated) == ("Action: look\n", STOP, False)
    await calls.answer(conversation.Call(messages=(HI, first.output, HI)))
    # The job's own stops are there as before, and the next call has no stop that it did not ask for.
    assert [request.sampling.stop for request in model.requests] == [("END", STOP), ("END",)]
    episode = calls.episode(1.0, episode_calls.ProxyConfig(export="concat"))
    assert episode is not None
    (row,) = episode.rows
    sampled = [token for token, is_trained in zip(row.tokens, row.loss_mask, strict=True) if is_trained]
    assert sampled == [*map(ord, SAID), *map(ord, "so"), episodes.EOS]
    assert tuple(row.tokens[: len(model.requests[1].input_ids)]) == model.requests[1].input_ids
    assert model.requests[1].input_ids[: len(model.requests[0].input_ids) + len(SAID)] == (
        *model.requests[0].input_ids, *map(ord, SAID),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("more", "new_text"), [(f"{STOP} a door", " a door"), ("Thought: none", "Thought: none"), (STOP, "")]
)
async def test_a_plain_prompt_goes_on_after_the_stop_that_was_sampled_or_without_it(more: str, new_text: str) -> None:
    model = StoppingModel(f"look\n{STOP}", "so")
    calls = calls_to(model)
    first = await calls.answer(conversation.Call(prompt="Q", stops=(STOP,)))
    await calls.answer(conversation.Call(prompt=f"Q{first.output.content}{more}"))
    before, after = (request.input_ids for request in model.requests)
    # Nothing is said twice: the stop is among the ids already.
    assert after == (*before, *map(ord, f"look\n{STOP}{new_text}"))
    assert calls.history.num_forks == 0


async def test_stops_that_the_job_keeps_stay_and_a_call_s_own_do_not() -> None:
    kept = types.Sampling(max_tokens=64, stop=("</a>",), include_stop=True)
    for text, expected in (("so</a>", "so</a>"), (f"so{STOP}", "so")):
        answer = await calls_to(StoppingModel(text), kept).answer(conversation.Call(messages=(HI,), stops=(STOP,)))
        assert answer.output.content == expected


@pytest.mark.parametrize("stream", [False, True])
async def test_the_official_clients_are_told_what_ended_an_answer(stream: bool) -> None:
    calls = calls_to(StoppingModel(SAID, SAID, SAID))
    attempt = sessions.Attempt(task="", sampling=types.Sampling(max_tokens=64), answer=calls.answer)
    proxy = server.Proxy()
    async with (
        proxy.open(attempt) as address,
        openai.AsyncOpenAI(
            base_url=address.base_url, api_key=address.api_key, max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
        ) as gpt,
        anthropic.AsyncAnthropic(
            base_url=address.base_url.removesuffix("/v1"), api_key=address.api_key, max_retries=0,
            http_client=anthropic.DefaultAsyncHttpxClient(trust_env=False),
        ) as claude,
    ):  # fmt: skip
        asked = {"role": "user", "content": "hi"}
        plain = await gpt.completions.create(model="policy", prompt="Q", stop=[STOP])
        assert (plain.choices[0].text, plain.choices[0].finish_reason) == ("Action: look\n", "stop")
        if stream:
            async with gpt.chat.completions.stream(model="policy", messages=[asked], stop=STOP) as chat:  # type: ignore[list-item]  # as users write it
                choice = (await chat.get_final_completion()).choices[0]
            async with claude.messages.stream(
                model="policy",
                max_tokens=64,
                messages=[asked],
                stop_sequences=[STOP],  # type: ignore[list-item]  # the same
            ) as messages:
                message = await messages.get_final_message()
        else:
            whole = await gpt.chat.completions.create(model="policy", messages=[asked], stop=STOP)  # type: ignore[list-item]  # the same
            choice = whole.choices[0]  # type: ignore[assignment]  # of a stream it is a parsed one
            message = await claude.messages.create(  # type: ignore[assignment]  # the same
                model="policy",
                max_tokens=64,
                messages=[asked],
                stop_sequences=[STOP],  # type: ignore[list-item]  # the same
            )
    await proxy.close()
    assert (choice.message.content, choice.finish_reason) == ("Action: look\n", "stop")
    assert [block.text for block in message.content if block.type == "text"] == ["Action: look\n"]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", STOP)
