"""Samples episodes of a small model in one batch: the bench's stand-in for the rollout engine.

All rows are at the same position: a row whose turn it is takes a sampled token, any other the next token of its prompt
or feedback. So there is no padding, and the log-probabilities are those of plain causal attention. What a row draws
depends on its noise alone, so two policies that are equal sample the same, and policies that are close nearly the same.
"""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from tests.bench.learning import base_model, tasks

from rljob_api import types
from rljob_testing import makers
from rljob_workers.coordinator.policy import prompts
from rljob_workers.rollout import generation
from rljob_workers.rollout.episodes import rows

# Of a prompt with its answers and feedback.
MOST_TOKENS = 96


class _Row:
    """A row while it grows, and whose turn it is."""

    def __init__(self, prompt: Sequence[int], episode: tasks.Episode, *, max_tokens: int) -> None:
        self._episode, self._max_tokens = episode, max_tokens
        self.waiting = collections.deque(prompt)
        self.builder = rows.RowBuilder()
        self.reward = 0.0
        self.over = False
        self._num_turns = 0
        self._ids: list[int] = []
        self._logprobs: list[float] = []

    def feed(self) -> int:
        token = self.waiting.popleft()
        self.builder.insert((token,))
        return token

    def sampled(self, token: int, logprob: float, tokenizer: base_model.Tokenizer, version: int) -> None:
        self._ids.append(token)
        self._logprobs.append(logprob)
        ended = token == tokenizer.end
        if not ended and len(self._ids) < self._max_tokens:
            return
        reply = self._episode.respond(tokenizer.decode(self._ids[:-1] if ended else self._ids))
        self._result = generation.GenerationResult(
            output_ids=tuple(self._ids), logprobs=tuple(self._logprobs), versions=(version,) * len(self._ids),
            stop_reason="stop" if ended else "length",
        )  # fmt: skip
        self.builder.sample(self._result, turn=self._num_turns)
        self._num_turns += 1
        self._ids, self._logprobs = [], []
        self.reward, self.over = reply.reward, reply.feedback is None
        if reply.feedback is not None:
            self.waiting.extend(tokenizer.encode(reply.feedback))

    def finished(self, sample_index: int) -> types.Trajectory:
        trajectory = self.builder.finished(
            last=self._result, reward=self.reward, raw_reward=self.reward, verdict=makers.make_verdict(self.reward),
            num_turns=self._num_turns,
        )  # fmt: skip
        return dataclasses.replace(trajectory, sample_index=sample_index)


class Sampler:
    """A policy that answers at temperature 1, or greedily. `weights`: of the version that it serves."""

    def __init__(self, model: Any, tokenizer: base_model.Tokenizer) -> None:
        self._model, self._tokenizer = model.eval(), tokenizer

    @property
    def names(self) -> list[str]:
        """Return the names of the model's weights."""
        return list(self._model.state_dict())

    def load(self, weights: dict[str, torch.Tensor]) -> None:
        """Serve these weights."""
        self._model.load_state_dict(weights)

    @torch.no_grad()
    def sample(
        self, task: tasks.Task, records: Sequence[tasks.Record], *, noise: torch.Tensor | None, version: int = 0
    ) -> list[types.Trajectory]:
        """Return an episode of each record, with its reward. noise [MOST_TOKENS, records], in [0, 1); None: greedy."""
        playing = [
            _Row(self._tokenizer.encode(record.prompt), task.begin(record), max_tokens=task.max_tokens)
            for record in records
        ]
        shortest = min(len(row.waiting) for row in playing)
        inputs = torch.tensor([[row.feed() for _ in range(shortest)] for row in playing])
        cache = None
        for place in range(shortest, MOST_TOKENS):
            output = self._model(input_ids=inputs, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            logprobs = torch.log_softmax(output.logits[:, -1].float(), dim=-1)
            chosen = _choose(logprobs, None if noise is None else noise[place])
            picked = logprobs.gather(1, chosen[:, None])[:, 0].tolist()
            tokens = chosen.tolist()
            for index, row in enumerate(playing):
                if row.over:
                    continue
                if row.waiting:
                    tokens[index] = row.feed()
                else:
                    row.sampled(tokens[index], picked[index], self._tokenizer, version)
            if all(row.over for row in playing):
                return [row.finished(index) for index, row in enumerate(playing)]
            inputs = torch.tensor(tokens)[:, None]
        raise ValueError(f"an episode of {task.name} has more than {MOST_TOKENS} tokens")


def _choose(logprobs: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
    """Return a token of each row [rows]: the likeliest, or the first at which the distribution passes the noise."""
    if noise is None:
        return logprobs.argmax(dim=-1)
    passed = logprobs.double().exp().cumsum(dim=-1) > noise[:, None]
    # Rounding may leave the whole distribution a little below the noise.
    return torch.where(passed.any(dim=-1), passed.int().argmax(dim=-1), logprobs.argmax(dim=-1))


def noise_of(*key: str | int, rows: int) -> torch.Tensor:
    """Return the noise of a batch [MOST_TOKENS, rows], a function of the key alone, fp64."""
    generator = torch.Generator().manual_seed(prompts.derive("noise", *key))
    return torch.rand(MOST_TOKENS, rows, generator=generator, dtype=torch.float64)
