"""Does this model give packed rows the log-probabilities that it gives each row alone? Asked before it is trained.

Packing is exact for a model whose tokens see one another through the attention function alone (attention.py). A layer
that carries state along the stream, positions that depend on the longest row, chunks, sinks, soft caps or a head of the
model's own break that without an error. So the real weights compute a few random rows twice: packed as in training,
and one by one by the model's own attention, masks and head, which share none of our code.

    group 0   a prompt with 3 completions, of which 2 fork after some tokens
    group 1   longer than the sliding window, where that is short
    group 2   a prompt with 2 completions at the last positions that a row may have
"""

import dataclasses
import logging
import random
from collections.abc import Sequence
from typing import Protocol

import torch

from rljob_api import errors, types
from rljob_workers.runtime import clock as clocks
from rljob_workers.trainer.model import batch_tensors, policy

logger = logging.getLogger(__name__)

# The largest and the mean gap that are allowed, nats. In float32 only the order of summation differs: 1e-5 was measured
# on SmolLM2-135M. In bfloat16 each way rounds logits of about 15 to 1/16: 0.2 at most and 0.07 in the mean there. The
# state of another row changes tokens by 0.1 to 2 nats in random models of 4 layers, and by more in trained ones. Both
# kinds are of logits at temperature 1: a lower one makes larger differences of the same.
_EXACT, _ROUNDED = (1e-4, 1e-4), (1.0, 0.2)
# A longer window is not crossed: the plain way holds a mask and scores of all pairs.
_LONGEST_WINDOW = 1024
_SEED = 20


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One row alone. tokens, position_ids [1, T]; predictors, targets [N]: as in a batch."""

    tokens: torch.Tensor
    position_ids: torch.Tensor
    predictors: torch.Tensor
    targets: torch.Tensor


class Model(Protocol):
    """A model that scores both ways. Every call may be collective: all ranks make them in the same order."""

    @property
    def model(self) -> policy.Facts:
        """Return what is known of it."""

    def score(self, tensors: batch_tensors.BatchTensors) -> torch.Tensor:
        """Return logprobs [N] of packed rows."""

    def score_plainly(self, row: Row) -> torch.Tensor:
        """Return logprobs [N] of one row, by the model's own attention."""


class Ranks(Protocol):
    """What agrees on the largest gap."""

    def largest(self, values: Sequence[float]) -> list[float]:
        """Return the maximum of each value over ranks."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Group:
    """fork: tokens that the last two completions begin with; 0: none."""

    prompt: list[int]
    completions: list[list[int]]
    first_position: int
    fork: int = 0


def check(
    model: Model, ranks: Ranks, *, device: torch.device, longest: int, field: str, name: str, clock: clocks.Clock
) -> None:
    """Compare both ways on all ranks. Raises ManifestError, on all alike, that names `field`, class and figure.

    longest: tokens that a row of the job may have; `field` and `name`: where the manifest names the model, and how.
    """
    began, facts = clock.monotonic(), model.model
    groups = _groups(facts, longest)
    packed = model.score(batch_tensors.to_tensors(_packed(groups), device))
    alone = torch.cat([model.score_plainly(row) for row in _rows(groups, device)])
    gaps = (packed - alone).abs().nan_to_num(nan=float("inf"))
    worst, mean = ranks.largest([float(gaps.max()), float(gaps.mean())])
    limits = _EXACT if facts.dtype is torch.float32 else _ROUNDED
    most, most_mean = (limit / min(1.0, facts.temperature) for limit in limits)
    if worst > most or mean > most_mean:
        raise errors.ManifestError(
            f"{field} is {name!r}, but its class {facts.name} gives packed rows other log-probabilities than single"
            f" ones: they differ by {worst:.2g} nats at most and {mean:.2g} in the mean, where {most:.2g} and"
            f" {most_mean:.2g} are rounding; it would be trained incorrectly. docs/models.md lists what can be trained"
        )
    logger.info(
        "%s gives packed rows what it gives single ones: %d log-probabilities differ by at most %.1e nats, of %.2g",
        facts.name, len(alone), worst, most,
        extra={"event": "selftest", "seconds": round(clock.monotonic() - began, 3)},
    )  # fmt: skip


def _groups(facts: policy.Facts, longest: int) -> list[_Group]:
    rng = random.Random(_SEED)

    def text(length: int) -> list[int]:
        return [rng.randrange(facts.vocab_size) for _ in range(length)]

    def group(prompt: int, completions: Sequence[int], *, at_the_end: bool = False, fork: int = 0) -> _Group:
        # A job of very short rows has positions for no longer ones.
        prompt = max(1, min(prompt, longest - max(completions)))
        lengths = [max(1, min(length, longest - prompt)) for length in completions]
        first = max(0, longest - prompt - max(lengths)) if at_the_end else 0
        texts = [text(length) for length in lengths]
        # Both go on behind the fork.
        fork = min(fork, *(length - 1 for length in lengths))
        if fork:
            texts[-1][:fork] = texts[-2][:fork]
        return _Group(text(prompt), texts, first, fork)

    crossing = facts.window + 5 if facts.window is not None and facts.window <= _LONGEST_WINDOW else 9
    return [group(12, (5, 6, 4), fork=2), group(crossing, (7,)), group(10, (3, 6), at_the_end=True)]


def _packed(groups: Sequence[_Group]) -> types.MicroBatch:
    tokens: list[int] = []
    positions: list[int] = []
    segments: list[types.Segment] = []
    targets: list[int] = []
    predictors: list[int] = []
    lengths: list[int] = []

    def segment(text: list[int], first_position: int, parent: int) -> list[int]:
        start = len(tokens)
        tokens.extend(text)
        positions.extend(range(first_position, first_position + len(text)))
        segments.append(types.Segment(start=start, end=len(tokens), parent=parent))
        return list(range(start, len(tokens)))

    for group in groups:
        prompt_len = len(group.prompt)
        parent, path = len(segments), segment(group.prompt, group.first_position, -1)
        for index, completion in enumerate(group.completions):
            if group.fork and index == len(group.completions) - 2:
                fork = segment(completion[: group.fork], group.first_position + prompt_len, parent)
                parent, path = len(segments) - 1, path + fork
            rest = completion[len(path) - prompt_len :]
            row = path + segment(rest, group.first_position + len(path), parent)
            targets += row[prompt_len:]
            predictors += row[prompt_len - 1 : -1]
            lengths.append(len(completion))
    zeros = [0.0] * len(targets)
    return types.MicroBatch(
        update=0,
        tokens=types.ints(tokens),
        position_ids=types.ints(positions),
        segments=segments,
        target_index=types.ints(targets),
        predictor_index=types.ints(predictors),
        logprobs=types.floats(zeros),
        advantages=types.floats(zeros),
        version_steps=types.ints([0] * len(targets)),
        row_index=types.ints([row for row, length in enumerate(lengths) for _ in range(length)]),
        rows=[
            types.RowHeader(
                group_id=types.GroupId(""),
                sample_index=0,
                num_tokens=length,
                row=row,
                raw_reward=0.0,
                shaped_reward=0.0,
            )
            for row, length in enumerate(lengths)
        ],
    )


def _rows(groups: Sequence[_Group], device: torch.device) -> list[Row]:
    rows = []
    for group in groups:
        for completion in group.completions:
            tokens = torch.tensor([group.prompt + completion], device=device)
            length, prompt = tokens.shape[1], len(group.prompt)
            rows.append(
                Row(
                    tokens=tokens,
                    position_ids=torch.arange(group.first_position, group.first_position + length, device=device)[None],
                    predictors=torch.arange(prompt - 1, length - 1, device=device),
                    targets=tokens[0, prompt:],
                )
            )
    return rows
