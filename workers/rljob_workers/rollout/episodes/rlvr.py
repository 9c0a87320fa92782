"""rlvr: one generation, one verdict, one row. Source: docs/design/workflows.md#s-3."""

from rljob_api import types
from rljob_workers.rollout import generation
from rljob_workers.rollout.episodes import protocols, rows, turns


class RlvrCollector:
    """The default workflow; holds no state between episodes."""

    def __init__(self, *, tokens: protocols.Tokens, template: str, max_model_len: int) -> None:
        """`template` decides the stop rules; a call's budget never exceeds the context."""
        self._asker, self._max_model_len = turns.Asker(tokens=tokens, template=template), max_model_len

    async def arun_episode(
        self,
        *,
        llm_client: generation.Generator,
        gconfig: types.Sampling,
        task: protocols.Task,
        grader: protocols.Grader,
        seed: int,
    ) -> protocols.Episode | None:
        """Generate, grade the decoded completion with the real prompt text, return the row."""
        client = turns.EpisodeClient(inner=llm_client, seed=seed, max_model_len=self._max_model_len)
        answer = await self._asker.ask(client, name=task.query_id, context=task.input_ids, gconfig=gconfig)
        turn = await turns.graded(answer, grader, prompt=task.prompt_text)
        row = rows.RowBuilder.begin(task.input_ids)
        row.sample(answer.result, turn=0)
        trajectory = row.finished(
            last=answer.result,
            reward=turn.raw_reward,
            raw_reward=turn.raw_reward,
            verdict=turn.verdict,
            output_chars=len(answer.text),
        )
        return protocols.Episode(rows=(trajectory,), total_reward=turn.raw_reward, turns=(turn.record,))
