"""An answer in parts: the engine could not keep a request, so input and tokens so far are sent again. Pure.

The text of the parts is the plain concatenation of their tokens, each with the version that sampled it. A stop string
that began in one part and would end in the next is not seen by the engine. Source: workflow reference 1.2.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence

from rljob_workers.rollout import generation


def rest_of(
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
    )


def joined(parts: Sequence[generation.GenerationResult]) -> generation.GenerationResult:
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
