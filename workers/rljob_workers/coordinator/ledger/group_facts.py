"""What became of prompt groups: `python -m rljob_workers.coordinator.ledger.group_facts STATE_DIR`.

Reads only, also while the coordinator is at work. With `--step K` it prints the groups that were trained in step K or
scored its weights; else it reads group ids from standard input, one a line, and answers each with one JSON line:

    {"group": "g00000007", "in_ledger": true, "state": "trained", "attempt": 0, "step": 3, "age": 1, "drop_reason": "",
     "source": "train", "advantages": {"0": [0.5], "1": [-0.5]}}

advantages: by sample, one value per row that adds to the loss; a row of a recorded batch that adds nothing (advantage
0, or masked) is not listed. null where the batch is not recorded any more (a checkpoint lets it go), not yet, or where
the trainer makes the advantages.
"""

import argparse
import functools
import json
import pathlib
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO

from rljob_api import enums, errors
from rljob_api.wire import codec
from rljob_workers.coordinator.ledger import retention
from rljob_workers.coordinator.ledger.database import Database, Row

_COLUMNS = "group_id, kind, state, attempt, step, eval_step, min_step, drop_reason, source"
_MAX_ID_CHARS = 256


class Reader:
    """Answers from one ledger."""

    def __init__(self, database: Database) -> None:
        """The batch of one step is kept at hand."""
        self._database = database
        self._of_step = functools.lru_cache(maxsize=1)(self._advantages)

    def group(self, group_id: str) -> dict[str, object]:
        """Return the facts of a group; `in_ledger` is false where the ledger has no such group."""
        row = self._database.one(f"SELECT {_COLUMNS} FROM groups WHERE group_id = ?", group_id)
        if row is not None:
            return self._facts(row)
        member = retention.find(self._database, group_id)
        return {"group": group_id, "in_ledger": False} if member is None else _old_facts(member)

    def step(self, step: int) -> Iterator[dict[str, object]]:
        """Yield the facts of the groups that a step of the surviving history trained, then of those that scored it."""
        sql = f"SELECT {_COLUMNS} FROM groups WHERE step = ? OR eval_step = ? ORDER BY step IS NULL, step_position"
        old = list(retention.of_step(self._database, step))
        yield from (_old_facts(member) for member in old if member.fate == enums.GroupState.TRAINED)
        for row in self._database.all(sql, step, step):
            yield self._facts(row)
        yield from (_old_facts(member) for member in old if member.fate != enums.GroupState.TRAINED)

    def _facts(self, row: Row) -> dict[str, object]:
        step = row["step"]
        of_step = None if step is None else self._of_step(step)
        return {
            "group": row["group_id"],
            "in_ledger": True,
            "state": row["state"],
            "attempt": row["attempt"],
            "step": row["eval_step"] if row["kind"] == enums.GroupKind.EVALUATION else step,
            "age": None if step is None or row["min_step"] is None else step - 1 - row["min_step"],
            "drop_reason": row["drop_reason"] or "",
            "source": row["source"],
            "advantages": None if of_step is None else of_step.get(row["group_id"], {}),
        }

    def _advantages(self, step: int) -> Mapping[str, Mapping[str, Sequence[float]]] | None:
        """Return advantages by group and sample of a recorded batch, None where there is none to read them from."""
        parts = self._database.all("SELECT rank, seq FROM batch_parts WHERE step = ? ORDER BY rank, seq", step)
        if not parts:
            return None
        advantages: dict[str, dict[str, list[float]]] = {}
        for part in parts:
            # One at a time: a part may have tens of megabytes.
            data = self._database.one(
                "SELECT data FROM batch_parts WHERE step = ? AND rank = ? AND seq = ?", step, part["rank"], part["seq"]
            )
            if data is None:
                return None
            batch = codec.decode_micro_batch(bytes(data["data"]))
            if len(batch.rewards):
                return None
            of_row = dict(zip(reversed(batch.row_index), reversed(batch.advantages), strict=True))
            for index, header in enumerate(batch.rows):
                samples = advantages.setdefault(header.group_id, {})
                samples.setdefault(str(header.sample_index), []).append(of_row[index])
        return advantages


def _old_facts(member: retention.Member) -> dict[str, object]:
    """Return the facts of a pruned group, whose batch is gone."""
    ended = member.fate in (enums.GroupState.TRAINED, retention.EVALUATED)
    return {
        "group": member.group_id,
        "in_ledger": True,
        "state": enums.GroupState.TRAINED if ended else enums.GroupState.DROPPED,
        "attempt": member.attempt,
        "step": member.step,
        "age": member.step - 1 - member.min_step
        if member.fate == enums.GroupState.TRAINED and member.step is not None and member.min_step is not None
        else None,
        "drop_reason": "" if ended else member.fate,
        "source": member.ref.source,
        "advantages": None,
    }


def answer(reader: Reader, questions: TextIO, answers: TextIO) -> None:
    """Answer group ids, one a line, until the end of the questions."""
    while question := questions.readline(_MAX_ID_CHARS):
        answers.write(json.dumps(reader.group(question.strip())) + "\n")
        answers.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Answer on standard output; 0, or 1 with a sentence on standard error where there is no ledger to read."""
    parser = argparse.ArgumentParser(prog="rljob-group-facts", description="Report what became of prompt groups.")
    parser.add_argument("state_dir", type=pathlib.Path)
    parser.add_argument("--step", type=int, help="print the groups of this step instead of answering questions")
    arguments = parser.parse_args(argv)
    path = arguments.state_dir / "ledger.sqlite"
    try:
        file = Database(path, read_only=True)
        try:
            reader = Reader(file)
            if arguments.step is None:
                answer(reader, sys.stdin, sys.stdout)
            else:
                for facts in reader.step(arguments.step):
                    sys.stdout.write(json.dumps(facts) + "\n")
        finally:
            file.close()
    except (sqlite3.Error, errors.RLJobError) as error:
        sys.stderr.write(f"error: the ledger {path} cannot be read: {error}\n")
        return int(enums.ExitCode.FAILED)
    return int(enums.ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
