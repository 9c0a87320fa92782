"""Rows of conversations that fork at random, and how many tokens they hold apart and as trees, counted the slow way."""

import random
from collections.abc import Sequence

from rljob_api import types


def make_forked_rows(
    *, groups: int, size: int, seed: int, vocab: int, longest: int = 7, before: int = 0
) -> list[types.TrainSample]:
    """Return rows of `groups` groups. Each group begins with a prompt, and all prompts with the same `before` tokens;
    every further row leaves an earlier one of its group somewhere behind its prompt, is equal to it, begins it or goes
    on from it.

    Which tokens a row trains, its advantage and log-probabilities are its own, also where it shares the tokens.
    """
    rng = random.Random(seed)

    def text(most: int) -> list[int]:
        return [rng.randrange(1, vocab) for _ in range(rng.randint(1, most))]

    rows: list[types.TrainSample] = []
    begun = [rng.randrange(1, vocab) for _ in range(before)]
    for group in range(groups):
        prompt = begun + text(longest)
        paths = [prompt + text(longest) + text(longest)]
        while len(paths) < size:
            other = rng.choice(paths)
            cut = rng.randint(len(prompt) + 1, len(other))
            paths.append(other[:cut] + rng.choice([[], text(longest), text(2 * longest)]))
        rows += [
            _row(rng, path, prompt_len=len(prompt), group=group, row=len(rows) + i) for i, path in enumerate(paths)
        ]
    return rows


def _row(rng: random.Random, path: Sequence[int], *, prompt_len: int, group: int, row: int) -> types.TrainSample:
    sampled = [0] * prompt_len + [int(rng.random() < 0.7) for _ in path[prompt_len:]]
    sampled[rng.randrange(prompt_len, len(path))] = 1
    count = sum(sampled)
    return types.TrainSample(
        group_id=types.GroupId(f"g{group}"),
        sample_index=row,
        row=row,
        tokens=types.ints(path),
        loss_mask=types.mask(sampled),
        logprobs=types.floats(rng.uniform(-6.0, -2.0) * flag for flag in sampled),
        version_steps=types.ints([0] * count),
        advantages=types.floats([rng.uniform(-2.0, 2.0)] * count),
        raw_reward=0.0,
        shaped_reward=0.0,
        group=group,
    )


def num_distinct_prefixes(rows: Sequence[types.TrainSample]) -> int:
    """Return how many (prefix, token) there are in the rows, those of each group counted on their own."""
    return len({(row.group_id, tuple(row.tokens[: end + 1])) for row in rows for end in range(len(row.tokens))})
