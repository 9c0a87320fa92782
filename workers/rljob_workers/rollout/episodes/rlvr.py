"""rlvr: one generation, one verdict, one row. Source: workflow reference 3."""

import uuid

from rljob_api import errors, names, types
from rljob_workers.rollout import generation, templates
from rljob_workers.rollout.episodes import protocols


class RlvrCollector:
    """The default workflow; holds no state between episodes."""

    def __init__(self, *, tokens: protocols.Tokens, template: str, max_model_len: int) -> None:
        """`template` decides the stop rules; a call's budget never exceeds the context."""
        self._tokens, self._template, self._max_model_len = tokens, template, max_model_len

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
        request = self._request(gconfig, task, seed)
        result = await llm_client.generate(request)
        truncated = result.stop_reason == "length"
        completion = generation.completion_text(self._tokens.decode(result.output_ids), result, request.sampling)
        verdict = await grader.grade(prompt=task.prompt_text, completion=completion, truncated=truncated)
        if verdict.reason is names.VerdictReason.INFRA_FAILURE or verdict.reward is None:
            raise errors.SandboxError(f"no verdict: {verdict.detail or verdict.reason}")
        row = single_turn_row(task.input_ids, result, verdict, verdict.reward)
        return protocols.Episode(rows=(row,), total_reward=verdict.reward)

    def _request(self, gconfig: types.Sampling, task: protocols.Task, seed: int) -> generation.GenerationRequest:
        stops = templates.with_stop_rules(self._template, gconfig, eos_ids=self._tokens.eos_ids)
        sampling = generation.within_context(stops, prompt_len=len(task.input_ids), max_model_len=self._max_model_len)
        # Two leases may hold the same prompt and seed at once: an evaluation repeated, a lease offered again.
        rid = f"{task.query_id}-{uuid.uuid4().hex}"
        return generation.GenerationRequest(rid=rid, input_ids=task.input_ids, sampling=sampling, seed=seed)


def single_turn_row(
    prompt_ids: tuple[int, ...], result: generation.GenerationResult, verdict: types.Verdict, reward: float
) -> types.Trajectory:
    """Return prompt + output as one row [P + T]; masks, versions and turn ids as the row type prescribes."""
    before, count = len(prompt_ids), len(result.output_ids)
    return types.Trajectory(
        tokens=types.ints((*prompt_ids, *result.output_ids)),
        loss_mask=types.mask([0] * before + [1] * count),
        logprobs=types.floats([0.0] * before + list(result.logprobs)),
        versions=types.ints([types.NO_VERSION] * before + list(result.versions)),
        turn_ids=types.ints([types.NO_TURN] * before + [0] * count),
        truncated=result.stop_reason == "length",
        reward=reward,
        raw_reward=reward,
        verdict=verdict,
        sample_index=0,
        stop_reason=result.stop_reason,
    )
