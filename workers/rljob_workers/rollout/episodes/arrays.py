"""From padded [n, L] arrays, as a workflow of the newer form returns them, to rows. The inverse of `export.padded`.

Lists, numpy arrays and tensors will do. Source of keys, shapes and masks: workflow reference 1.3.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from rljob_api import errors, types
from rljob_workers.rollout.episodes import agent_loop
from rljob_workers.runtime import withheld

NEEDED = ("input_ids", "loss_mask", "logprobs", "versions", "rewards")


@runtime_checkable
class _Array(Protocol):
    def tolist(self) -> list[object]:
        """Return nested lists."""


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
    made: list[types.Trajectory] = []
    first_turn = 0
    for index, row_ids in enumerate(ids):
        kept = [place for place, real in enumerate(attended[index]) if real]
        sampled = [wide["loss_mask"][index][place] for place in kept]
        own = [0.0] * len(row_ids) if turns is None else turns[index]
        # No two rows of an episode share a turn.
        numbered = [first_turn + int(own[p]) if s else types.NO_TURN for p, s in zip(kept, sampled, strict=True)]
        first_turn = max(numbered, default=first_turn - 1) + 1
        made.append(
            types.Trajectory(
                tokens=types.ints(int(row_ids[place]) for place in kept),
                loss_mask=types.mask(int(bool(one)) for one in sampled),
                logprobs=types.floats(wide["logprobs"][index][place] for place in kept),
                versions=types.ints(int(wide["versions"][index][place]) for place in kept),
                turn_ids=types.ints(numbered),
                truncated=bool(truncated[index]),
                reward=rewards[index],
                raw_reward=raw[index],
                verdict=agent_loop.verdict_of(raw[index], grader="workflow"),
                sample_index=0,
                stop_reason="length" if truncated[index] else "stop",
            )
        )
    return tuple(made)


def _wide(arrays: Mapping[str, object], key: str, shape: Sequence[int] | None) -> list[list[float]]:
    rows = _listed(arrays[key])
    found = [[_number(value, key) for value in _listed(row)] for row in rows]
    if shape is not None and [len(row) for row in found] != list(shape):
        raise errors.EpisodeError(f"{key} has rows of {[len(row) for row in found]} values, input_ids of {list(shape)}")
    return found


def _flat(arrays: Mapping[str, object], key: str, count: int) -> list[float]:
    found = [_number(value, key) for value in _listed(arrays[key])]
    if len(found) != count:
        raise errors.EpisodeError(f"{key} has {len(found)} values for {count} rows")
    return found


def _listed(value: object) -> list[object]:
    listed = value.tolist() if isinstance(value, _Array) else value
    if not isinstance(listed, list | tuple):
        raise errors.EpisodeError(f"a workflow's array holds {type(value).__name__} where a list belongs")
    return list(listed)


def _number(value: object, key: str) -> float:
    if not isinstance(value, int | float):
        raise errors.EpisodeError(f"{key} holds {withheld.shown(value)}, which is no number")
    return float(value)
