"""The agent that answers a user's environment: observations are texts, actions are texts, the context only grows.

The first observation becomes a prompt as a record's would; later ones become user turns of the chat template, appended
as ids after what was sampled. An observation may also be a list of ids, which is taken as it is.
"""

from collections.abc import Sequence

from rljob_api import errors, types
from rljob_workers.rollout import generation, templates
from rljob_workers.rollout.episodes import protocols

Observation = str | Sequence[int]


class TextAgent:
    """Remembers the ids of its conversation until it is reset."""

    def __init__(self, *, tokens: protocols.Tokens, template: str) -> None:
        """`template` renders the first observation and decides the stop rules."""
        self._tokens, self._template = tokens, template
        self._context: tuple[int, ...] = ()

    async def areset(self) -> None:
        """Forget the conversation."""
        self._context = ()

    async def aact(self, agent_input: protocols.AgentInput[Observation]) -> protocols.AgentOutput[str]:
        """Generate once; the action is the completion's text. Raises EpisodeError for another observation."""
        context = self._context + self._ids(agent_input.obs)
        sampling = templates.with_stop_rules(self._template, agent_input.gconfig, eos_ids=self._tokens.eos_ids)
        request = generation.GenerationRequest(rid="agent", input_ids=context, sampling=sampling, seed=0)
        result = await agent_input.llm_client.generate(request)
        self._context = context + result.output_ids
        text = generation.completion_text(self._tokens.decode(result.output_ids), result, sampling)
        return protocols.AgentOutput(action=text, llm_req=request, llm_resp=result)

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
        return self._tokens.prompt_ids(types.PromptRecord(prompt_id="obs", source="agent", columns={"prompt": text}))

    def _turn(self, text: str) -> tuple[int, ...]:
        eos = self._tokens.eos_ids[0]
        closing = () if self._context[-1] == eos else (eos,)
        return closing + self._tokens.feedback_ids(text)
