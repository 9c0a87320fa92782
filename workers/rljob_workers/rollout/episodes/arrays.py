"""From padded [n, L] arrays, as a workflow of the newer form returns them, to rows, and back.

Lists, numpy arrays and tensors will do. Source of keys, shapes and masks: docs/design/workflows.md#s-1-3.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from rljob_api import errors, types
from rljob_workers.rollout.episodes import agent
from rljob_workers.runtime import redaction

T = TypeVar("T")

NEEDED = ("input_ids", "loss_mask", "logprobs", "versions", "rewards")
Arrays = dict[str, list[object]]


@runtime_checkable
class _Array(Protocol):
    def tolist(self) -> list[object]: ...


def rows_of(arrays: Mapping[str, object]) -> tuple[types.Trajectory, ...]:
    """Return a row per index of the first dimension, without its padding.

    Needed: input_ids, loss_mask, logprobs, versions [n, L] and rewards [n]. May be left out: attention_mask (nothing is
    padding), turn_ids (one turn a row), raw_rewards (rewards), truncated (False). Raises EpisodeError naming the key
    that is missing or of another shape, WireError for a row that breaks a rule of rows.
    """
    missing = [key for key in NEEDED if key not in arrays]
    if missing:
        # What else is there is named by the user, and may be named by a text.
        raise errors.EpisodeError(f"the workflow's arrays have no {', '.join(missing)}; there are {len(arrays)}")
    ids = _wide(arrays, "input_ids", None)
    shape = [len(row) for row in ids]
    wide = {key: _wide(arrays, key, shape) for key in ("loss_mask", "logprobs", "versions")}
    attended = _wide(arrays, "attention_mask", shape) if "attention_mask" in arrays else [[1] * n for n in shape]
    turns = _wide(arrays, "turn_ids", shape) if "turn_ids" in arrays else None
    rewards = _flat(arrays, "rewards", len(ids))
    raw = _flat(arrays, "raw_rewards", len(ids)) if "raw_rewards" in arrays else rewards
    truncated = _flat(arrays, "truncated", len(ids)) if "truncated" in arrays else [0.0] * len(ids)
    trajectories: list[types.Trajectory] = []
    first_turn = 0
    for index, row_ids in enumerate(ids):
        places = [place for place, real in enumerate(attended[index]) if real]
        sampled = [wide["loss_mask"][index][place] for place in places]
        own = [0.0] * len(row_ids) if turns is None else turns[index]
        # No two rows of an episode share a turn.
        numbered = [first_turn + int(own[p]) if s else types.NO_TURN for p, s in zip(places, sampled, strict=True)]
        first_turn = max(numbered, default=first_turn - 1) + 1
        trajectories.append(
            types.Trajectory(
                tokens=types.ints(int(row_ids[place]) for place in places),
                loss_mask=types.mask(int(bool(flag)) for flag in sampled),
                logprobs=types.floats(wide["logprobs"][index][place] for place in places),
                versions=types.ints(int(wide["versions"][index][place]) for place in places),
                turn_ids=types.ints(numbered),
                truncated=bool(truncated[index]),
                reward=rewards[index],
                raw_reward=raw[index],
                verdict=agent.verdict_of(raw[index], grader="workflow"),
                sample_index=0,
                stop_reason="length" if truncated[index] else "stop",
            )
        )
    return tuple(trajectories)


def _wide(arrays: Mapping[str, object], key: str, shape: Sequence[int] | None) -> list[list[float]]:
    rows = _listed(arrays[key])
    values = [[_number(value, key) for value in _listed(row)] for row in rows]
    if shape is not None and [len(row) for row in values] != list(shape):
        raise errors.EpisodeError(
            f"{key} has rows of {[len(row) for row in values]} values, input_ids of {list(shape)}"
        )
    return values


def _flat(arrays: Mapping[str, object], key: str, count: int) -> list[float]:
    values = [_number(value, key) for value in _listed(arrays[key])]
    if len(values) != count:
        raise errors.EpisodeError(f"{key} has {len(values)} values for {count} rows")
    return values


def _listed(value: object) -> list[object]:
    listed = value.tolist() if isinstance(value, _Array) else value
    if not isinstance(listed, list | tuple):
        raise errors.EpisodeError(f"a workflow's array holds {type(value).__name__} where a list belongs")
    return list(listed)


def _number(value: object, key: str) -> float:
    if not isinstance(value, int | float):
        raise errors.EpisodeError(f"{key} holds {redaction.brief(value)}, which is not a number")
    return float(value)


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
