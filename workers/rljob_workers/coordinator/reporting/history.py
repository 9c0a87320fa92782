"""`history.jsonl` in the state directory: one line per step, evaluation, version, weight sync, checkpoint and restart.

Lines are written to the ledger, in the transaction of what they describe, and copied from there to the file; each
carries its ledger sequence number `seq`. The file is thus always a prefix of the ledger's table: after a crash the
writer cuts a torn last line off, reads the last `seq` and appends what is missing. No line is lost or doubled. A step
that was trained again after a rewind has a second line; the later one counts, and a `restart` line with `resume_step`
is between.
"""

import json
import os
import pathlib
from collections.abc import Sequence

FILE_NAME = "history.jsonl"

_TAIL_BYTES = 1 << 20


class HistoryFile:
    """The file's writer. One at a time."""

    def __init__(self, path: pathlib.Path) -> None:
        """Cut a torn last line off and find the last sequence number."""
        self._path = path
        self.last_seq = _repair(path)
        self._durable_seq = 0

    def append(self, lines: Sequence[tuple[int, str]]) -> None:
        """Append ledger lines, in order; those already written are skipped."""
        fresh = [(seq, line) for seq, line in lines if seq > self.last_seq]
        if not fresh:
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(_with_seq(seq, line) for seq, line in fresh))
        self.last_seq = fresh[-1][0]

    def make_durable(self) -> int:
        """Write what was appended through to the disk; return the last sequence number that is there for certain.

        The ledger may forget lines up to it. A file that is gone holds nothing.
        """
        seq = self.last_seq
        if seq == self._durable_seq or not self._path.exists():
            return self._durable_seq
        with self._path.open("rb+") as file:
            os.fsync(file.fileno())
        self._durable_seq = seq
        return seq


def _with_seq(seq: int, line: str) -> str:
    return f'{{"seq":{seq},{line[1:]}\n'


def _repair(path: pathlib.Path) -> int:
    if not path.exists():
        return 0
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        tail = file.read()
        end = tail.rfind(b"\n") + 1
        file.truncate(size - len(tail) + end)
    complete = tail[:end].splitlines()
    return int(json.loads(complete[-1])["seq"]) if complete else 0
