"""What a dump says of a row, its versions and its turns. Pure. Source: workflow reference 10.

A turn's text is cut out by token offsets, never by searching text.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from rljob_api import types
from rljob_workers.rollout.episodes import protocols


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RowTurns:
    """The turns that a row holds: the `first` of `count` in the episode, and those after it."""

    records: Sequence[protocols.TurnRecord]
    first: int
    count: int


def version_summary(row: types.Trajectory) -> dict[str, object]:
    """Return head, tail and run-length pairs of the versions of sampled tokens; -1 and none if there are none."""
    versions = [version for version, sampled in zip(row.versions, row.loss_mask, strict=True) if sampled]
    return {
        "head_version": min(versions, default=-1),
        "tail_version": max(versions, default=-1),
        "version_rle": [[version, len(list(run))] for version, run in itertools.groupby(versions)],
        "prompt_len": row.prompt_len,
    }


def segments(row: types.Trajectory, tokens: protocols.Tokens) -> list[dict[str, object]] | None:
    """Return prompt, gen and context runs with their text, or None with fewer than two sampled runs."""
    runs = [
        (sampled, list(run)) for sampled, run in itertools.groupby(range(len(row.tokens)), row.loss_mask.__getitem__)
    ]
    if sum(1 for sampled, _ in runs if sampled) < 2:
        return None
    found: list[dict[str, object]] = []
    for sampled, run in runs:
        role = "gen" if sampled else ("context" if found else "prompt")
        found.append({"role": role, "len": len(run), "text": tokens.decode_exact([row.tokens[i] for i in run])})
    return found


def turn_fields(turn: protocols.TurnRecord) -> dict[str, object]:
    """Return what the line says of one turn: its own lengths and versions."""
    return {
        "success": turn.success,
        "raw_reward": turn.raw_reward,
        "prompt_len": turn.prompt_len,
        "answer_len": turn.answer_len,
        "version_start": turn.version_start,
        "version_end": turn.version_end,
        "stop_reason": turn.stop_reason,
        "reason": turn.reason,
    }


def row_fields(
    lease: types.GroupLease,
    row: types.Trajectory,
    turns: RowTurns,
    tokens: protocols.Tokens,
) -> dict[str, object]:
    """Return the line of one row; it lists the turns that the row trains, if the episode has several."""
    ids = list(row.tokens)
    return {
        "task_id": str(lease.group_id),
        "group_id": str(lease.group_id),
        "sample_idx": row.sample_index,
        "attempt": lease.attempt,
        "query_id": lease.prompt.prompt_id,
        "seqlen": len(ids),
        **version_summary(row),
        "reward": row.reward,
        "raw_reward": row.raw_reward,
        "truncated": row.truncated,
        "stop_reason": row.stop_reason,
        "formatted": row.verdict.formatted,
        "reason": str(row.verdict.reason),
        "prompt": tokens.decode_exact(ids[: row.prompt_len]),
        "completion": tokens.decode_exact(ids[row.prompt_len :]),
        "segments": segments(row, tokens),
        "turns": [turn_fields(turn) for turn in turns.records] if turns.count > 1 else None,
    }


def turns_by_row(
    rows: Sequence[types.Trajectory], turns: Sequence[protocols.TurnRecord]
) -> Iterator[tuple[types.Trajectory, RowTurns]]:
    """Yield a member's rows with the turns that each holds: all in one row, or a row for each, or unknown."""
    if len(rows) == 1:
        yield rows[0], RowTurns(records=turns, first=0, count=len(turns))
    elif len(rows) == len(turns):
        for index, (row, turn) in enumerate(zip(rows, turns, strict=True)):
            yield row, RowTurns(records=(turn,), first=index, count=len(turns))
    else:
        yield from ((row, RowTurns(records=(), first=0, count=0)) for row in rows)


def turn_text(
    row: types.Trajectory, turn: protocols.TurnRecord, tokens: protocols.Tokens, *, index: int, count: int
) -> str:
    """Return the readable block of turn `index` of `count`: its own lengths, versions, reward, prompt and answer."""
    end = turn.prompt_len + turn.answer_len
    ids = list(row.tokens[:end])
    return (
        f"idx: {index + 1} / {count}, seqlen: {end}, head version: {turn.version_start},"
        f" tail version: {turn.version_end}.\n"
        f"reward is {turn.raw_reward}, prompt is {tokens.decode_exact(ids[: turn.prompt_len])}\n"
        f"sequence is: {tokens.decode_exact(ids[turn.prompt_len :])}\n"
    )


def monitor_fields(turn: protocols.TurnRecord) -> dict[str, object]:
    """Return the line of AReaL's training monitor for one turn."""
    names = ("version_start", "version_end", "success", "prompt_len", "answer_len")
    return {name: getattr(turn, name) for name in names}
