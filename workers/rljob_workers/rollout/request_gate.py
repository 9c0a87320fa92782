"""The gate between episodes and the engine. Closed during a weight update: requests wait here, not in the engine.

The version that salts a request's prefix cache is read when the request passes, not when it arrives: after an update
a request that waited must not find blocks that the old weights filled. A request that the engine had to give up
continues here too, so that no episode knows of it.
"""

import asyncio
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence

from rljob_api import types
from rljob_workers.rollout import generation
from rljob_workers.rollout.engines import base


def remaining_request(
    request: generation.GenerationRequest, parts: Sequence[generation.GenerationResult]
) -> generation.GenerationRequest | None:
    """Return what is to be asked after `parts`, None where they have used up the budget.

    It has a seed of its own: with the first one the engine would draw the numbers again that drew the first part.
    """
    if not parts:
        return request
    done = tuple(itertools.chain.from_iterable(part.output_ids for part in parts))
    sampling = request.sampling
    if len(done) >= sampling.max_tokens:
        return None
    return dataclasses.replace(
        request,
        rid=f"{request.rid}.{len(parts)}",
        input_ids=request.input_ids + done,
        sampling=dataclasses.replace(
            sampling,
            max_tokens=sampling.max_tokens - len(done),
            min_tokens=max(0, sampling.min_tokens - len(done)),
        ),
        seed=generation.derived_seed(request.seed, "part", len(parts)),
        on_tokens=None if request.on_tokens is None else functools.partial(_tell, request.on_tokens, done),
    )


def _tell(on_tokens: Callable[[Sequence[int]], None], done: tuple[int, ...], ids: Sequence[int]) -> None:
    on_tokens((*done, *ids))


def join_parts(parts: Sequence[generation.GenerationResult]) -> generation.GenerationResult:
    """Return the parts as one result, which ended as the last one did; a last part that was interrupted had used up
    the budget. From the last token of a part to the first of the next is a gap as well: what the interruption cost.
    """
    last = parts[-1]
    if len(parts) == 1 and last.stop_reason != generation.INTERRUPT:
        return last
    empty = list(itertools.takewhile(lambda part: not part.output_ids, parts))
    first = parts[len(empty)] if len(empty) < len(parts) else last
    return generation.GenerationResult(
        output_ids=tuple(itertools.chain.from_iterable(part.output_ids for part in parts)),
        logprobs=tuple(itertools.chain.from_iterable(part.logprobs for part in parts)),
        versions=tuple(itertools.chain.from_iterable(part.versions for part in parts)),
        stop_reason="length" if last.stop_reason == generation.INTERRUPT else last.stop_reason,
        matched_stop=last.matched_stop,
        latency_s=math.fsum(part.latency_s for part in parts),
        ttft_s=math.fsum(part.latency_s for part in empty) + first.ttft_s,
        itl_s=generation.gaps_s(_token_at_s(parts)),
        repeated_tokens=sum(part.repeated_tokens for part in parts),
        cached_tokens=sum(part.cached_tokens for part in parts),
    )


def _token_at_s(parts: Sequence[generation.GenerationResult]) -> list[float]:
    """Return when each token came, from the first request on; nothing where a part's tokens were not timed."""
    at_s: list[float] = []
    begin_s = 0.0
    for part in parts:
        if len(part.itl_s) != max(0, len(part.output_ids) - 1):
            return []
        if part.output_ids:
            at_s += itertools.accumulate(part.itl_s, initial=begin_s + part.ttft_s)
        begin_s += part.latency_s
    return at_s


class RequestGate:
    """Passes requests to the engine while open. Starts closed."""

    def __init__(self, engine: base.Engine) -> None:
        self._engine = engine
        self._open = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._version = types.VersionId(0)
        self._in_flight = 0

    @property
    def is_open(self) -> bool:
        """Return whether requests pass."""
        return self._open.is_set()

    @property
    def num_in_flight(self) -> int:
        """Return how many requests have passed and not come back."""
        return self._in_flight

    def open(self, version: types.VersionId) -> None:
        """Let requests pass, salted with `version`."""
        self._version = version
        self._open.set()

    def close(self) -> None:
        """Let requests wait."""
        self._open.clear()

    async def drained(self) -> None:
        """Return when no request is inside."""
        await self._idle.wait()

    async def generate(self, request: generation.GenerationRequest) -> generation.GenerationResult:
        """Wait for the gate, then generate; what the engine could not keep continues behind the next open gate. Raises
        EngineError as the engine does, or for a result to be refused.
        """
        parts: list[generation.GenerationResult] = []
        while (rest := remaining_request(request, parts)) is not None:
            parts.append(await self._once(rest))
            if parts[-1].stop_reason != generation.INTERRUPT:
                break
        return generation.checked(join_parts(parts))

    async def _once(self, request: generation.GenerationRequest) -> generation.GenerationResult:
        while not self._open.is_set():
            await self._open.wait()
        self._in_flight += 1
        self._idle.clear()
        try:
            return await self._engine.generate(request, version=self._version)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()
