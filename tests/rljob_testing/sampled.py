"""What an engine sampled, and a check that rows train that and nothing else.

`PairModel` answers in ids that no tokenizer would make of its text, so that text tokenised again is never the same;
`Recorder` stands before a real engine.
"""

import collections
from collections.abc import Iterable, Sequence

import numpy as np

from rljob_api import types
from rljob_testing import episodes
from rljob_testing import rollout as fakes
from rljob_workers.rollout import generation

PAIR = 0x110000
# Log-probabilities are multiples of a power of 2, and so exact in float32: each tells its token among all.
STEP = 1 / 4096


class PairTokens(fakes.FakeTokens):
    """Ids above all characters spell a character, too."""

    def decode(self, ids: Sequence[int]) -> str:
        return super().decode([token % PAIR for token in ids])

    def decode_exact(self, ids: Sequence[int]) -> str:
        return super().decode_exact([token % PAIR for token in ids])


class PairModel:
    """Answers with the given texts in turn, token by token to who follows, and keeps what it was asked with and what it
    said.
    """

    def __init__(self, texts: Sequence[str] = ()) -> None:
        self.texts = list(texts)
        self.said: dict[tuple[int, ...], list[generation.GenerationResult]] = collections.defaultdict(list)
        self.num_calls = self.num_tokens = 0

    async def generate(self, request: generation.GenerationRequest) -> generation.GenerationResult:
        text = self.texts[self.num_calls % len(self.texts)]
        numbers = range(self.num_tokens, self.num_tokens + len(text) + 1)
        self.num_calls, self.num_tokens = self.num_calls + 1, numbers.stop
        result = generation.GenerationResult(
            output_ids=(*(PAIR + ord(letter) for letter in text), episodes.EOS),
            logprobs=tuple(-1.0 - number * STEP for number in numbers),
            versions=(3,) * len(numbers),
            stop_reason="stop",
        )
        self.said[request.input_ids].append(result)
        for end in range(1, len(text) + 1 if request.on_tokens is not None else 0):
            assert request.on_tokens is not None, "the line above"
            request.on_tokens(result.output_ids[:end])
        return result

    def check(self, rows: Iterable[types.Trajectory]) -> collections.Counter[int]:
        """Return how often each token was trained, by its number. Raises AssertionError for one that was not sampled,
        or not after exactly the ids before it.
        """
        sampled = {
            round((-1.0 - logprob) / STEP): (asked, result.output_ids, at)
            for asked, results in self.said.items()
            for result in results
            for at, logprob in enumerate(result.logprobs)
        }
        found: collections.Counter[int] = collections.Counter()
        for row in rows:
            tokens = tuple(row.tokens)
            for place, (is_trained, logprob) in enumerate(zip(row.loss_mask, row.logprobs, strict=True)):
                if is_trained:
                    number = round((-1.0 - float(logprob)) / STEP)
                    asked, output, at = sampled[number]
                    assert tokens[: place + 1] == asked + output[: at + 1], f"token {number} at {place}"
                    found[number] += 1
        return found


class Recorder:
    """Passes requests on to an engine, and keeps the log-probability of each token by the ids up to and with it."""

    def __init__(self, inner: generation.Generator) -> None:
        self.inner = inner
        self.num_calls = self.num_tokens = 0
        self.logprobs: dict[tuple[int, ...], set[float]] = collections.defaultdict(set)

    async def generate(self, request: generation.GenerationRequest) -> generation.GenerationResult:
        result = await self.inner.generate(request)
        self.num_calls, self.num_tokens = self.num_calls + 1, self.num_tokens + len(result.output_ids)
        for end, logprob in enumerate(result.logprobs, start=1):
            # As rows have them.
            self.logprobs[request.input_ids + result.output_ids[:end]].add(float(np.float32(logprob)))
        return result

    def check(self, rows: Iterable[types.Trajectory]) -> int:
        """Return how many of the sampled tokens are trained. Raises AssertionError for a trained token that was not
        sampled after exactly the ids before it, with that log-probability.
        """
        trained: set[tuple[int, ...]] = set()
        for row in rows:
            tokens = tuple(row.tokens)
            for place, (is_trained, logprob) in enumerate(zip(row.loss_mask, row.logprobs, strict=True)):
                if is_trained:
                    ids = tokens[: place + 1]
                    assert float(logprob) in self.logprobs.get(ids, ()), f"token at {place} was not sampled there"
                    trained.add(ids)
        return len(trained)
