"""Does an update with the weights that are loaded already change an answer? Asked of the engine before it serves.

Engines prepare weights for their kernels when they load them first: they pack, pad, fuse or quantise. Where an update
prepares them in another way, or forgets to, nothing raises: every tensor was taken, and the engine samples from weights
that no trainer ever made. So the image of the model files, which the engine has just loaded by itself, is loaded once
more as an update is, and one prompt is answered before and after, with the same seed.
"""

import dataclasses
import logging
import statistics
from collections.abc import Sequence

from rljob_api import errors, types
from rljob_workers.rollout import generation
from rljob_workers.rollout.engines import base

logger = logging.getLogger(__name__)

# Equal weights in equal kernels give equal bits; kernels that sum in another order each time stay far below. Experts
# that were not packed again were 1.6 nats off in the median.
_MOST_NATS = 0.2
_NUM_PROMPT_TOKENS, _NUM_TOKENS = 64, 16
_SEED = 20


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """Between two answers of `count` tokens: how many of the first are the same, and the median gap of their logprobs
    in nats.
    """

    same: int
    count: int
    nats: float

    @property
    def is_rounding(self) -> bool:
        """Return whether the same weights can have given both. Where tokens part early, weights differ."""
        return 2 * self.same >= self.count and self.nats <= _MOST_NATS


async def check(
    engine: base.Engine,
    *,
    layout: types.Layout,
    version: types.VersionId,
    prompt: Sequence[int],
    longest: int,
    field: str,
    name: str,
) -> None:
    """Load the image, which holds what the engine loaded, and compare. The engine then serves `version`.

    prompt: token ids of any text; longest: tokens that a request may have; `field` and `name`: where the manifest names
    the model, and how. Raises ManifestError that names them and the difference, EngineError if the engine breaks.
    """
    await engine.commit(version)
    ids = tuple(prompt[: max(1, min(_NUM_PROMPT_TOKENS, longest // 2))])
    sampling = types.Sampling(max_tokens=max(1, min(_NUM_TOKENS, longest - len(ids))), ignore_eos=True)

    async def answer(rid: str) -> generation.GenerationResult:
        request = generation.GenerationRequest(rid=rid, input_ids=ids, sampling=sampling, seed=_SEED)
        return await engine.generate(request, version=version)

    before = await answer("selftest-before")
    # Without a clear cache the prompt would be read with the keys and values of the first weights.
    await engine.pause(clear_cache=True)
    await engine.load(layout)
    await engine.verify()
    await engine.commit(version)
    await engine.resume()
    difference = compare(before, await answer("selftest-after"))
    if not difference.is_rounding:
        raise errors.ManifestError(
            f"{field} is {name!r}, but the engine cannot update its weights: after an update that changes none,"
            f" {difference.same} of {difference.count} tokens are the same and their log-probabilities differ by"
            f" {difference.nats:.2g} nats in the median, where {_MOST_NATS:g} are rounding; every version would be"
            " served wrong. docs/models.md lists what is served"
        )
    logger.info(
        "an update that changes no weight changes no answer: %d of %d tokens are the same, %.1e nats apart",
        difference.same, difference.count, difference.nats, extra={"event": "selftest"},
    )  # fmt: skip


def compare(before: generation.GenerationResult, after: generation.GenerationResult) -> Difference:
    """Return how far two answers to one request with one seed are apart."""
    pairs = list(zip(before.output_ids, after.output_ids, strict=False))
    same = next((index for index, (left, right) in enumerate(pairs) if left != right), len(pairs))
    gaps = [abs(before.logprobs[index] - after.logprobs[index]) for index in range(same)]
    count = max(len(before.output_ids), len(after.output_ids))
    return Difference(same=same, count=count, nats=statistics.median(gaps) if gaps else 0.0)
