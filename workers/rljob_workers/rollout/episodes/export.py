"""Rows in the forms that the originals' readers know: padded [n, L] arrays, and the packed sample of a row per turn.

Plain lists. Source: workflow reference 1.3 and 5.2.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from rljob_api import types

T = TypeVar("T")
Arrays = dict[str, list[object]]


def padded(rows: Sequence[types.Trajectory]) -> Arrays:
    """Return rows as arrays: [n, L] keys are right-padded to the longest row, the others are [n].

    `prompt_mask` and `seq_no_eos_mask` are AReaL's names for "attended but not trained" and for truncated.
    """
    longest = max(len(row.tokens) for row in rows)

    def wide(values: Callable[[types.Trajectory], Sequence[T]], fill: T) -> list[object]:
        return [[*values(row), *[fill] * (longest - len(row.tokens))] for row in rows]

    return {
        "input_ids": wide(lambda row: row.tokens, 0),
        "attention_mask": wide(lambda row: [True] * len(row.tokens), False),
        "loss_mask": wide(lambda row: [bool(sampled) for sampled in row.loss_mask], False),
        "prompt_mask": wide(lambda row: [not sampled for sampled in row.loss_mask], False),
        "logprobs": wide(lambda row: row.logprobs, 0.0),
        "versions": wide(lambda row: row.versions, types.NO_VERSION),
        "turn_ids": wide(lambda row: row.turn_ids, types.NO_TURN),
        "rewards": [row.reward for row in rows],
        "raw_rewards": [row.raw_reward for row in rows],
        "truncated": [row.truncated for row in rows],
        "seq_no_eos_mask": [row.truncated for row in rows],
        "formatted": [row.verdict.formatted for row in rows],
        "reason": [str(row.verdict.reason) for row in rows],
    }


def packed(rows: Sequence[types.Trajectory], *, birth_time_ms: int) -> Arrays:
    """Return the rows of a legacy episode, one per turn, packed end to end: row j has L_j tokens, P_j of them context.

    packed_input_ids, prompt_mask [sum L_j]; packed_logprobs [sum (L_j - 1)], of the next token; seq_no_eos_mask,
    rewards, version_start, version_end [turns]; packed_prompts [P_0]; birth_time [1], milliseconds.
    """
    versions = [[version for version in row.versions if version != types.NO_VERSION] for row in rows]
    return {
        "packed_input_ids": [token for row in rows for token in row.tokens],
        "prompt_mask": [place < row.prompt_len for row in rows for place in range(len(row.tokens))],
        "packed_logprobs": [value for row in rows for value in row.logprobs[1:]],
        "seq_no_eos_mask": [row.truncated for row in rows],
        "rewards": [row.reward for row in rows],
        "version_start": [row[0] for row in versions],
        "version_end": [row[-1] for row in versions],
        "packed_prompts": list(rows[0].tokens[: rows[0].prompt_len]),
        "birth_time": [birth_time_ms],
    }
