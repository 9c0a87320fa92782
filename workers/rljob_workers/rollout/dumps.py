"""Trajectory dumps: one JSON line per row, append only. A failed dump is counted and never delays a group.

Fields and folder names: workflow reference 10.
"""

import itertools
import json
import logging
from pathlib import Path

from rljob_api import names, types
from rljob_workers.rollout.episodes import protocols

logger = logging.getLogger(__name__)


class Dumper:
    """Writes under `folder`; an empty name switches it off."""

    def __init__(self, folder: str, tokens: protocols.Tokens) -> None:
        """`tokens` decodes."""
        self._folder = Path(folder) if folder else None
        self._tokens = tokens
        self.num_failed = 0

    def dump(self, lease: types.GroupLease, group: types.PromptGroup) -> None:
        """Append the group's rows to the file of each row's newest version."""
        if self._folder is None:
            return
        kind = "eval-rollout" if lease.kind is names.GroupKind.EVALUATION else "rollout"
        for row in group.trajectories:
            fields = row_fields(lease, row, self._tokens)
            path = self._folder / kind / str(fields["tail_version"]) / f"{group.group_id}.jsonl"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("a", encoding="utf-8") as handle:
                    handle.write(json.dumps(fields, ensure_ascii=False) + "\n")
            except OSError as error:
                self.num_failed += 1
                logger.warning("dump number %d failed: %s", self.num_failed, error, extra={"group": group.group_id})


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


def row_fields(lease: types.GroupLease, row: types.Trajectory, tokens: protocols.Tokens) -> dict[str, object]:
    """Return the line of one row."""
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
    }
