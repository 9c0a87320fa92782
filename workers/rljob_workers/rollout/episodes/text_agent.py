"""The agent that answers a user's environment: observations are texts, actions are texts, the context only grows.

The first observation becomes a prompt as a record's would; later ones become user turns of the chat template, appended
as ids after what was sampled. An observation may also be a list of ids, which is taken as it is.
"""

from collections.abc import Sequence

from rljob_api import errors, types
from rljob_workers.rollout.episodes import protocols, turns

Observation = str | Sequence[int]


class TextAgent:
    """Remembers the ids of its conversation until it is reset."""

    def __init__(self, *, tokens: protocols.Tokens, template: str) -> None:
        """`template` renders the first observation and decides the stop rules."""
        self._asker = turns.Asker(tokens=tokens, template=template)
        self._context: tuple[int, ...] = ()

    async def areset(self) -> None:
        """Forget the conversation."""
        self._context = ()

    async def aact(self, agent_input: protocols.AgentInput[Observation]) -> protocols.AgentOutput[str]:
        """Generate once; the action is the completion's text. Raises EpisodeError for another observation."""
        context = self._context + self._ids(agent_input.obs)
        answer = await self._asker.ask(
            agent_input.llm_client, name="agent", context=context, gconfig=agent_input.gconfig
        )
        self._context = context + answer.result.output_ids
        return protocols.AgentOutput(action=answer.text, llm_req=answer.request, llm_resp=answer.result)

    def _ids(self, obs: object) -> tuple[int, ...]:
        if isinstance(obs, str):
            return self._turn(obs) if self._context else self._prompt(obs)
        if isinstance(obs, Sequence) and obs and all(type(token) is int for token in obs):
            return tuple(obs)
        raise errors.EpisodeError(
            f"the environment's observation is {type(obs).__name__}, but the built-in agent reads a text or a list of"
            " token ids; name an agent of your own in spec.workflow.config.agent"
        )

    def _prompt(self, text: str) -> tuple[int, ...]:
        record = types.PromptRecord(prompt_id="obs", source="agent", columns={"prompt": text})
        return self._asker.tokens.prompt_ids(record)

    def _turn(self, text: str) -> tuple[int, ...]:
        return self._asker.closing_ids(self._context) + self._asker.tokens.feedback_ids(text)
