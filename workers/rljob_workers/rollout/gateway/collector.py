"""A class with `run(data, base_url, http_client, api_key)` as a collector: its calls come through the gateway."""

from collections.abc import Callable, Mapping
from typing import Protocol

import httpx

from rljob_api import types
from rljob_workers.rollout import generation
from rljob_workers.rollout.episodes import agent, protocols, turns
from rljob_workers.rollout.gateway import episode_calls, server, sessions


class OpenAIAgent(Protocol):
    """What the user's class offers."""

    async def run(
        self, *, data: Mapping[str, object], base_url: str, http_client: httpx.AsyncClient, api_key: str
    ) -> float | Mapping[str, float]:
        """Return the reward of the last call, or rewards by call id."""


class ProxyCollector:
    """Holds the server; each episode has an agent and an address of its own."""

    def __init__(
        self,
        *,
        make_agent: Callable[[], OpenAIAgent],
        config: episode_calls.ProxyConfig,
        tokens: protocols.Tokens,
        template: str,
        max_model_len: int,
    ) -> None:
        """`template` decides the stop rules; conversations are rendered by the tokenizer's chat template. Raises
        ManifestError for a parser of tool calls that does not exist.
        """
        self._make_agent, self._config, self._max_model_len = make_agent, config, max_model_len
        self._asker, self._proxy = turns.Asker(tokens=tokens, template=template), server.Proxy()
        self._tool_reader = episode_calls.tool_reader(config, tokens)

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
        the agent got over it.
        """
        client = turns.EpisodeClient(inner=llm_client, seed=seed, max_model_len=self._max_model_len)
        calls = episode_calls.EpisodeCalls(
            asker=self._asker, tool_reader=self._tool_reader, client=client, gconfig=gconfig
        )
        async with (
            self._proxy.open(sessions.Attempt(task="", sampling=gconfig, answer=calls.answer)) as address,
            httpx.AsyncClient(trust_env=False, timeout=None) as http,
        ):
            returned = await self._make_agent().run(
                data=agent.reset_options(task), base_url=address.base_url, http_client=http, api_key=address.api_key
            )
        return calls.episode(returned, self._config)
