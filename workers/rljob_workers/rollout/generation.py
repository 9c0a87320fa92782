"""One generation call: request, result, and the rules by which a result is refused.

Log-probabilities are in nats of the distribution that was sampled from. Refusal rules: docs/design/workflows.md#s-1-2.
"""

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Protocol

from rljob_api import enums, errors, types

SEED_BITS = 63
# The engine could not keep the request; what is left of it is sent again, and no episode sees this.
INTERRUPT = "interrupt"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """Ids are sent, never text. `rid` is unique per call. `sampling.max_tokens` is the budget of this call.

    priority: where the engine cannot decode all requests at once, those of lower numbers come first. It is the order in
    which batches take the groups, so that the last ones of a step do not wait behind those of the next.
    on_tokens: is told all ids that were sampled so far, now and then, but not those that end the answer; an engine that
    tells nothing is right as well. pictures: files, in the order in which their tokens stand in the ids.
    """

    rid: str
    input_ids: tuple[int, ...]
    sampling: types.Sampling
    seed: int
    priority: int = 0
    on_tokens: Callable[[Sequence[int]], None] | None = dataclasses.field(default=None, compare=False, repr=False)
    pictures: tuple[bytes, ...] = dataclasses.field(default=(), repr=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """What the engine sampled. output_ids, logprobs, versions [T]; versions are ids that the engine asserted.

    `stop_reason` is `stop`, `length` or, of a part, INTERRUPT; `matched_stop` the stop string that ended it, which
    is in output_ids.
    ttft_s: from arrival in the engine to the first token. itl_s [T - 1]: from each token to the next, 0 where one
    step of the engine sampled both; empty where the engine does not time tokens.
    repeated_tokens: of the prompt, those that earlier requests began with (engines/prefixes.py); cached_tokens: those
    that the engine did not compute again. Both 0 where the engine does not say.
    """

    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    stop_reason: str
    matched_stop: str = ""
    latency_s: float = 0.0
    ttft_s: float = 0.0
    itl_s: tuple[float, ...] = ()
    repeated_tokens: int = 0
    cached_tokens: int = 0

    @property
    def truncated(self) -> bool:
        """Return whether the budget ended it."""
        return self.stop_reason == "length"


class ContextFullError(errors.EpisodeError):
    """The ids of a request leave no room for an answer: the end of a long episode, not a fault of anyone's."""


class Generator(Protocol):
    """What an episode generates with."""

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        """Return a checked result. Raises EngineError if the engine failed; cancelling aborts the generation."""


def checked(result: GenerationResult) -> GenerationResult:
    """Return `result` if it keeps the contract. Raises EngineError with the first rule that it breaks."""
    count = len(result.output_ids)
    if not count:
        raise errors.EngineError("the engine returned no token")
    if len(result.logprobs) != count or len(result.versions) != count:
        raise errors.EngineError(f"{count} tokens, {len(result.logprobs)} logprobs, {len(result.versions)} versions")
    if result.stop_reason not in ("stop", "length"):
        raise errors.EngineError(f"generation ended by {result.stop_reason!r}")
    _check_logprobs(result.logprobs)
    _check_versions(result.versions)
    return result


def _check_logprobs(logprobs: Sequence[float]) -> None:
    for index, value in enumerate(logprobs):
        if not isinstance(value, float) or not math.isfinite(value):
            raise errors.EngineError(f"logprob {value!r} of token {index} is not a finite number")
        if value == enums.VLLM_MISSING_LOGPROB or value > enums.LOGPROB_ROUNDING:
            raise errors.EngineError(f"logprob {value} of token {index} is not a log-probability")


def _check_versions(versions: Sequence[int]) -> None:
    previous = 0
    for index, version in enumerate(versions):
        if version < previous:
            raise errors.EngineError(f"version {version} of token {index} follows version {previous}")
        previous = version


def gaps_s(token_at_s: Sequence[float]) -> tuple[float, ...]:
    """Return the seconds from each token to the next [T - 1], given when each was sampled [T]; never below 0."""
    return tuple(max(0.0, later - earlier) for earlier, later in itertools.pairwise(token_at_s))


def derived_seed(*parts: int | str) -> int:
    """Return a 63-bit seed that is a pure function of `parts`, e.g. lease seed, member, attempt and turn."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> (64 - SEED_BITS)


def within_context(sampling: types.Sampling, *, prompt_len: int, max_model_len: int) -> types.Sampling:
    """Return `sampling` with max_tokens = min(max_tokens, max_model_len - prompt_len).

    Raises ContextFullError below 1.
    """
    budget = min(sampling.max_tokens, max_model_len - prompt_len)
    if budget <= 0:
        raise ContextFullError(f"a prompt of {prompt_len} tokens leaves no room in a context of {max_model_len}")
    return dataclasses.replace(sampling, max_tokens=budget)


def completion_text(
    decoded: str, result: GenerationResult, sampling: types.Sampling, *, own_stops: Sequence[str] = ()
) -> str:
    """Return what a grader reads of `decoded`: up to the stop string, unless the user asked to keep those of the job.

    own_stops: of this call alone, which are never part of the text.
    """
    # The ids keep what was sampled; the grader reads what the user asked for.
    is_kept = sampling.include_stop and result.matched_stop not in own_stops
    return decoded.split(result.matched_stop, 1)[0] if result.matched_stop and not is_kept else decoded
