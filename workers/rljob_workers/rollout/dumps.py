"""Trajectory dumps: one JSON line per row, append only. A failed dump is counted and never delays a group.

Names of folders, and what is in the files: docs/design/workflows.md#s-10.
"""

import collections
import dataclasses
import itertools
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rljob_api import enums, types
from rljob_api.manifest.lifecycle import ObservabilitySpec
from rljob_workers.rollout import group
from rljob_workers.rollout.episodes import protocols

logger = logging.getLogger(__name__)


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
    parts: list[dict[str, object]] = []
    for sampled, run in runs:
        role = "gen" if sampled else ("context" if parts else "prompt")
        parts.append({"role": role, "len": len(run), "text": tokens.decode_exact([row.tokens[i] for i in run])})
    return parts


def token_fields(row: types.Trajectory, tokens: protocols.Tokens) -> dict[str, object]:
    """Return text and behavior log-probability (nats; None where nothing was sampled) of each token after the prompt.

    A token that is a part of a character has no text of its own: such parts read as U+FFFD.
    """
    places = range(row.prompt_len, len(row.tokens))
    return {
        "texts": [tokens.decode_exact([row.tokens[place]]) for place in places],
        "logprobs": [round(float(row.logprobs[place]), 4) if row.loss_mask[place] else None for place in places],
    }


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
    *,
    with_tokens: bool = False,
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
        **({"tokens": token_fields(row, tokens)} if with_tokens else {}),
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """An empty folder switches dumps off. groups_per_version 0: all groups. text, monitor: further files. tokens: each
    token by itself, too.
    """

    folder: str
    groups_per_version: int = 0
    text: bool = False
    monitor: bool = False
    tokens: bool = False


# Groups of each version that one rollout dumps where a sample is asked for.
SAMPLED_GROUPS = 4


def options_of(observability: ObservabilitySpec, folder: str) -> Options:
    return Options(
        folder=folder,
        groups_per_version=SAMPLED_GROUPS if observability.trajectory_dump == "Sampled" else 0,
        text="Text" in observability.trajectory_dump_also,
        monitor="LegacyMonitor" in observability.trajectory_dump_also,
        tokens="Tokens" in observability.trajectory_dump_also,
    )


class Dumper:
    """Appends the rows of groups to files by kind and newest version."""

    def __init__(
        self, options: Options, tokens: protocols.Tokens, *, on_failure: Callable[[], None] = lambda: None
    ) -> None:
        """`tokens` decodes; `on_failure` counts what could not be written."""
        self._options, self._tokens, self._on_failure = options, tokens, on_failure
        self._dumped: collections.Counter[tuple[enums.GroupKind, int]] = collections.Counter()
        self.num_failed = 0

    def dump(self, lease: types.GroupLease, scored: group.ScoredGroup) -> None:
        """Append a group, unless enough groups of its newest version were dumped already."""
        if not self._options.folder or not scored.group.trajectories or not self._chosen(lease, scored.group):
            return
        for path, text in self._texts(lease, scored):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("a", encoding="utf-8") as handle:
                    handle.write(text)
            except OSError as error:
                self.num_failed += 1
                self._on_failure()
                logger.warning("dump number %d failed: %s", self.num_failed, error, extra={"group": lease.group_id})

    def _chosen(self, lease: types.GroupLease, group: types.PromptGroup) -> bool:
        newest = max(max(row.versions) for row in group.trajectories)
        self._dumped[lease.kind, newest] += 1
        limit = self._options.groups_per_version
        return limit == 0 or self._dumped[lease.kind, newest] <= limit

    def _texts(self, lease: types.GroupLease, scored: group.ScoredGroup) -> Iterator[tuple[Path, str]]:
        folder = Path(self._options.folder)
        kind = "eval-rollout" if lease.kind is enums.GroupKind.EVALUATION else "rollout"
        for member, row, turns in _rows(scored):
            fields = row_fields(lease, row, turns, self._tokens, with_tokens=self._options.tokens)
            path = folder / kind / str(fields["tail_version"]) / f"{lease.group_id}.jsonl"
            yield path, _line(fields)
            if self._options.text:
                shown = [
                    turn_text(row, turn, self._tokens, index=index, count=turns.count)
                    for index, turn in enumerate(turns.records, start=turns.first)
                ]
                yield path.with_suffix(".txt"), f"sample {member}\n" + "".join(shown)
            if self._options.monitor:
                monitor = "".join(_line(monitor_fields(turn)) for turn in turns.records)
                yield folder / "training_monitor" / path.parent.name / path.name, monitor


def _rows(
    scored: group.ScoredGroup,
) -> Iterator[tuple[int, types.Trajectory, RowTurns]]:
    for member in sorted({row.sample_index for row in scored.group.trajectories}):
        rows = [row for row in scored.group.trajectories if row.sample_index == member]
        for row, turns in turns_by_row(rows, scored.turns.get(member, ())):
            yield member, row, turns


def _line(fields: dict[str, object]) -> str:
    return json.dumps(fields, ensure_ascii=False) + "\n"
