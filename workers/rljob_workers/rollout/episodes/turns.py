"""One turn: ask the model with the template's stop rules, have the answer graded. Every workflow is made of turns."""

import dataclasses
import itertools
import math
import uuid
from collections.abc import Callable, Sequence

from rljob_api import enums, errors, types
from rljob_workers.rollout import generation, prompts
from rljob_workers.rollout.episodes import protocols


@dataclasses.dataclass(slots=True)
class EpisodeClient:
    """The generator as one episode sees it: own request ids, a seed per call, budgets within the context."""

    inner: generation.Generator
    seed: int
    max_model_len: int
    num_calls: int = 0

    async def generate(self, request: generation.GenerationRequest) -> generation.GenerationResult:
        """Raises EngineError, or EpisodeError if no context is left."""
        index, self.num_calls = self.num_calls, self.num_calls + 1
        sampling = generation.within_context(
            request.sampling, prompt_len=len(request.input_ids), max_model_len=self.max_model_len
        )
        return await self.inner.generate(
            dataclasses.replace(
                request,
                # Two leases may hold the same prompt and seed at once: an evaluation repeated, a lease offered again.
                rid=f"{request.rid}-{index}-{uuid.uuid4().hex}",
                sampling=sampling,
                seed=generation.derived_seed(self.seed, index),
            )
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A generation, what was asked, and the text that a grader reads."""

    request: generation.GenerationRequest
    result: generation.GenerationResult
    text: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Asks with one tokenizer and one template's stop rules."""

    tokens: protocols.Tokens
    template: str

    async def ask(
        self,
        client: generation.Generator,
        *,
        name: str,
        context: tuple[int, ...],
        gconfig: types.Sampling,
        max_new_tokens: int | None = None,
        own_stops: Sequence[str] = (),
        on_tokens: Callable[[Sequence[int]], None] | None = None,
    ) -> Answer:
        """Generate once after `context`; the client gives the call its seed and keeps its budget in the context.

        own_stops: texts that end this answer, besides those of the job and the template.
        """
        sampling = self.sampling(gconfig)
        sampling = dataclasses.replace(sampling, stop=(*sampling.stop, *own_stops))
        if max_new_tokens is not None:
            sampling = dataclasses.replace(sampling, max_tokens=max_new_tokens)
        request = generation.GenerationRequest(
            rid=name, input_ids=context, sampling=sampling, seed=0, on_tokens=on_tokens
        )
        result = await client.generate(request)
        text = generation.completion_text(self.tokens.decode(result.output_ids), result, sampling, own_stops=own_stops)
        return Answer(request=request, result=result, text=text)

    def sampling(self, gconfig: types.Sampling) -> types.Sampling:
        """Return the job's sampling with the template's stop rules."""
        return prompts.with_stop_rules(self.template, gconfig, eos_ids=self.tokens.eos_ids)

    def closing_ids(self, context: tuple[int, ...]) -> tuple[int, ...]:
        """Return what ends an answer that a length limit or a stop string cut: EOS, where it is not there."""
        eos = self.tokens.eos_ids[0]
        return () if context[-1] == eos else (eos,)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GradedTurn:
    """An answer and what the grader said of it."""

    answer: Answer
    verdict: types.Verdict
    raw_reward: float

    @property
    def record(self) -> protocols.TurnRecord:
        """Return what dumps report on the turn."""
        return record_of(self.answer.request, self.answer.result, self.verdict, raw_reward=self.raw_reward)


def record_of(
    request: generation.GenerationRequest,
    result: generation.GenerationResult,
    verdict: types.Verdict,
    *,
    raw_reward: float,
) -> protocols.TurnRecord:
    """Return what dumps report on a generation and its verdict."""
    return protocols.TurnRecord(
        raw_reward=raw_reward,
        prompt_len=len(request.input_ids),
        answer_len=len(result.output_ids),
        version_start=result.versions[0],
        version_end=result.versions[-1],
        stop_reason=result.stop_reason,
        reason=str(verdict.reason),
    )


async def graded(answer: Answer, grader: protocols.Grader, *, prompt: str, turn: int = 0) -> GradedTurn:
    """Have an answer graded. Raises SandboxError or JudgeError without a verdict: it does not score 0."""
    verdict = await grader.grade(
        prompt=prompt,
        completion=answer.text,
        truncated=answer.result.truncated,
        prompt_ids=answer.request.input_ids,
        completion_ids=answer.result.output_ids,
    )
    return GradedTurn(answer=answer, verdict=verdict, raw_reward=reward_of(verdict, turn=turn))


def reward_of(verdict: types.Verdict, *, turn: int = 0) -> float:
    """Raises SandboxError if the verdict carries none, JudgeError if that is a judge's doing."""
    if verdict.reason is enums.VerdictReason.INFRA_FAILURE or verdict.reward is None:
        if verdict.detail.startswith(enums.JUDGE_UNAVAILABLE):
            raise errors.JudgeError(f"no verdict for turn {turn}: {verdict.detail}")
        raise errors.SandboxError(f"no verdict for turn {turn}: {verdict.detail or verdict.reason}")
    return verdict.reward


def signed(success: float, *, bias: float = 0.0, scale: float = 1.0) -> float:
    """Return ((success - 0.5) * 2 - bias) * scale; `success` may be fractional."""
    return ((success - 0.5) * 2 - bias) * scale


def back_propagated(rewards: Sequence[float], *, discount: float) -> list[float]:
    """Return R_last = r_last, R_i = r_i + discount * R_{i+1}, in the order of the turns. Raises ValueError if the
    discount is not finite.
    """
    if not math.isfinite(discount):
        raise ValueError(f"turnDiscount is {discount}, but must be finite")
    backward = itertools.accumulate(reversed(rewards), lambda later, reward: reward + discount * later)
    return list(backward)[::-1]


def rejection(successes: Sequence[float], *, lower: float, upper: float) -> enums.DropReason | None:
    """Return why a group with these successes is rejected, or None; both bounds are inclusive."""
    if not successes:
        raise ValueError("a group without members has no mean success")
    mean = math.fsum(successes) / len(successes)
    if mean < lower:
        return enums.DropReason.TOO_LOW
    return enums.DropReason.TOO_HIGH if mean > upper else None


def deciding_turn(raw_rewards: Sequence[float]) -> int:
    """Return the index of the first turn with a non-zero raw reward, else of the last one."""
    if not raw_rewards:
        raise ValueError("a conversation has at least one turn")
    return next((turn for turn, reward in enumerate(raw_rewards) if reward != 0.0), len(raw_rewards) - 1)


def final_reward(raw_rewards: Sequence[float], *, discount: float) -> float:
    """Return the raw reward of the deciding turn times discount^(failed turns before it)."""
    turn = deciding_turn(raw_rewards)
    return raw_rewards[turn] * discount**turn
