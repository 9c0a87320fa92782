"""`workflow.type: external`: agents outside take the attempts; their calls become rows as those of agents inside do."""

import json

from rljob_api import errors, types
from rljob_workers.rollout import generation
from rljob_workers.rollout.episodes import agent, protocols, turns
from rljob_workers.rollout.gateway import episode_calls, sessions


class ExternalCollector:
    """Offers each episode as an attempt."""

    def __init__(
        self,
        *,
        open_sessions: sessions.Sessions,
        config: episode_calls.ProxyConfig,
        tokens: protocols.Tokens,
        template: str,
        max_model_len: int,
    ) -> None:
        """`template` decides the stop rules. Raises ManifestError for a parser of tool calls that does not exist."""
        self._sessions, self._config, self._max_model_len = open_sessions, config, max_model_len
        self._asker = turns.Asker(tokens=tokens, template=template)
        self._tool_reader = episode_calls.tool_reader(config, tokens)

    async def arun_episode(
        self,
        *,
        llm_client: generation.Generator,
        gconfig: types.Sampling,
        task: protocols.Task,
        grader: protocols.Grader,
        seed: int,
    ) -> protocols.Episode | None:
        """Wait for an agent and for its rewards, or those of the job's graders; None if it made no call that was
        answered.

        Raises what the engine raised; EpisodeError if the agent gave up or was silent; DataError for a record that is
        no JSON; SandboxError or JudgeError without a verdict.
        """
        client = turns.EpisodeClient(inner=llm_client, seed=seed, max_model_len=self._max_model_len)
        calls = episode_calls.EpisodeCalls(
            asker=self._asker, tool_reader=self._tool_reader, client=client, gconfig=gconfig
        )
        try:
            record = json.dumps(agent.reset_options(task))
        except (TypeError, ValueError) as error:
            raise errors.DataError(f"record {task.query_id} cannot be sent to an agent: {error}") from error
        returned = await self._sessions.run(sessions.Attempt(task=record, sampling=gconfig, answer=calls.answer))
        if returned is None:
            return await calls.graded_episode(grader, self._config, prompt=task.prompt_text)
        return calls.episode(returned, self._config)
