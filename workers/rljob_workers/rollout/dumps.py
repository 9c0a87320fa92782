"""Trajectory dumps: one JSON line per row, append only. A failed dump is counted and never delays a group.

Folder names: workflow reference 10; what stands in the files: `dump_lines.py`.
"""

import collections
import dataclasses
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from rljob_api import names, types
from rljob_workers.rollout import dump_lines, groups
from rljob_workers.rollout.episodes import protocols

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """An empty folder switches dumps off. groups_per_version 0: all groups. text, monitor: further files."""

    folder: str
    groups_per_version: int = 0
    text: bool = False
    monitor: bool = False


class Dumper:
    """Appends the rows of groups to files by kind and newest version."""

    def __init__(
        self, options: Options, tokens: protocols.Tokens, *, on_failure: Callable[[], None] = lambda: None
    ) -> None:
        """`tokens` decodes; `on_failure` counts what could not be written."""
        self._options, self._tokens, self._on_failure = options, tokens, on_failure
        self._dumped: collections.Counter[tuple[names.GroupKind, int]] = collections.Counter()
        self.num_failed = 0

    def dump(self, lease: types.GroupLease, scored: groups.ScoredGroup) -> None:
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

    def _texts(self, lease: types.GroupLease, scored: groups.ScoredGroup) -> Iterator[tuple[Path, str]]:
        folder = Path(self._options.folder)
        kind = "eval-rollout" if lease.kind is names.GroupKind.EVALUATION else "rollout"
        for member, row, turns in _rows(scored):
            fields = dump_lines.row_fields(lease, row, turns, self._tokens)
            path = folder / kind / str(fields["tail_version"]) / f"{lease.group_id}.jsonl"
            yield path, _line(fields)
            if self._options.text:
                shown = [
                    dump_lines.turn_text(row, turn, self._tokens, index=index, count=turns.count)
                    for index, turn in enumerate(turns.records, start=turns.first)
                ]
                yield path.with_suffix(".txt"), f"sample {member}\n" + "".join(shown)
            if self._options.monitor:
                monitor = "".join(_line(dump_lines.monitor_fields(turn)) for turn in turns.records)
                yield folder / "training_monitor" / path.parent.name / path.name, monitor


def _rows(
    scored: groups.ScoredGroup,
) -> Iterator[tuple[int, types.Trajectory, dump_lines.RowTurns]]:
    for member in sorted({row.sample_index for row in scored.group.trajectories}):
        rows = [row for row in scored.group.trajectories if row.sample_index == member]
        for row, turns in dump_lines.turns_by_row(rows, scored.turns.get(member, ())):
            yield member, row, turns


def _line(fields: dict[str, object]) -> str:
    return json.dumps(fields, ensure_ascii=False) + "\n"
