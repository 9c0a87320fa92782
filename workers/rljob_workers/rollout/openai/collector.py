"""A class with `run(data, base_url, http_client, api_key)` as a collector: its calls come through the proxy."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Literal, Protocol

import httpx
import pydantic
import pydantic.alias_generators

from rljob_api import errors, types
from rljob_workers.rollout import generation
from rljob_workers.rollout.episodes import agent, protocols, turns
from rljob_workers.rollout.openai import calls, interactions, requests, server, tools


class ProxyConfig(pydantic.BaseModel):
    """`workflow.config.proxy` of such a class."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, alias_generator=pydantic.alias_generators.to_camel)

    export: Literal["individual", "concat"] = "individual"
    turn_discount: float = pydantic.Field(default=1.0, allow_inf_nan=False)
    drop_retry_orphans: bool = True


class OpenAIAgent(Protocol):
    """What the user's class offers."""

    async def run(
        self, *, data: Mapping[str, object], base_url: str, http_client: httpx.AsyncClient, api_key: str
    ) -> float | Mapping[str, float]:
        """Return the reward of the last call, or rewards by call id."""


class ProxyCollector:
    """Holds the proxy; each episode has an agent and an address of its own."""

    def __init__(
        self,
        *,
        make_agent: Callable[[], OpenAIAgent],
        config: ProxyConfig,
        tokens: protocols.Tokens,
        template: str,
        max_model_len: int,
    ) -> None:
        """`template` decides the stop rules; conversations are rendered by the tokenizer's chat template."""
        self._make_agent, self._config, self._max_model_len = make_agent, config, max_model_len
        self._asker, self._proxy = turns.Asker(tokens=tokens, template=template), server.Proxy()

    async def close(self) -> None:
        """Stop listening; a process that ends need not ask."""
        await self._proxy.close()

    async def arun_episode(
        self,
        *,
        llm_client: generation.Generator,
        gconfig: types.Sampling,
        task: protocols.Task,
        grader: protocols.Grader,  # noqa: ARG002  # the agent rewards itself
        seed: int,
    ) -> protocols.Episode | None:
        """Run the agent to its end; None if it made no call that was answered. Raises what the engine raised, even if
        the agent got over it: its sample would be a part.
        """
        client = turns.EpisodeClient(inner=llm_client, seed=seed, max_model_len=self._max_model_len)
        episode = _Episode(
            history=interactions.Interactions(),
            asker=self._asker,
            client=client,
            gconfig=gconfig,
            export=self._config.export,
        )
        async with (
            self._proxy.open(sampling=gconfig, answer=episode.answer) as address,
            httpx.AsyncClient(trust_env=False, timeout=None) as http,
        ):
            returned = await self._make_agent().run(
                data=agent.reset_options(task), base_url=address.base_url, http_client=http, api_key=address.api_key
            )
        if episode.failure is not None:
            raise episode.failure
        history = episode.history
        history.reward(returned, drop_orphans=self._config.drop_retry_orphans)
        total = history.discount(self._config.turn_discount)
        rows = history.rows(self._config.export)
        return protocols.Episode(rows=rows, total_reward=total, num_turns=len(history.finished())) if rows else None


@dataclasses.dataclass(slots=True, kw_only=True)
class _Episode:
    """Answers the calls of one episode, one at a time."""

    history: interactions.Interactions
    asker: turns.Asker
    client: turns.EpisodeClient
    gconfig: types.Sampling
    export: interactions.Export
    failure: errors.RLJobError | None = None

    async def answer(self, call: calls.Call) -> interactions.Interaction:
        """Generate the answer to a call. Raises EngineError, or EpisodeError if no context is left."""
        interaction = self.history.begin(call.messages, prompt_ids=self._prompt_ids(call), tools=call.tools)
        try:
            answer = await self.asker.ask(
                self.client,
                name=interaction.id,
                context=interaction.prompt_ids,
                gconfig=self.gconfig,
                max_new_tokens=min(call.max_tokens or self.gconfig.max_tokens, self.gconfig.max_tokens),
            )
        except errors.EpisodeError:
            raise
        except errors.RLJobError as error:
            self.failure = error
            raise
        interaction.result, interaction.output = answer.result, _output(answer.text, interaction)
        return interaction

    def _prompt_ids(self, call: calls.Call) -> tuple[int, ...]:
        """Return the prompt: the parent's ids and what stands between, where one row is to hold both."""
        tokens, tools = self.asker.tokens, json.loads(call.tools or "[]")
        parent = self.history.parent_of(call.messages, tools=call.tools) if self.export == "concat" else None
        if parent is not None and parent.result is not None:
            ids = parent.prompt_ids + parent.result.output_ids
            between = tokens.continuation_ids(_plain(parent.conversation), _plain(call.messages), tools=tools)
            return ids + self.asker.closing_ids(ids) + between
        ids = tokens.chat_ids(_plain(call.messages), tools=tools)
        if tools and ids == tokens.chat_ids(_plain(call.messages)):
            raise requests.BadCallError("tools: the chat template of the model does not show them to it")
        return ids


def _output(text: str, interaction: interactions.Interaction) -> interactions.Message:
    if not interaction.tools:
        return interactions.Message(role="assistant", content=text)
    content, tool_calls = tools.extract_calls(text, prefix=interaction.id)
    return interactions.Message(role="assistant", content=content, tool_calls=tool_calls)


def _plain(messages: tuple[interactions.Message, ...]) -> list[Mapping[str, object]]:
    """Return messages as a chat template reads them: arguments of a tool as an object, not as its text."""
    return [
        {"role": message.role, "content": message.content}
        | ({"tool_calls": [_plain_call(call) for call in message.tool_calls]} if message.tool_calls else {})
        | ({"tool_call_id": message.tool_call_id} if message.tool_call_id else {})
        for message in messages
    ]


def _plain_call(call: tools.ToolCall) -> Mapping[str, object]:
    function = {"name": call.name, "arguments": json.loads(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}
