"""What the runner itself did, one JSON line each in runner.jsonl: segments, process starts and endings, memory peaks.

The coordinator's history is about the run's content; this is about its processes. It survives kill -9 of the
runner: the time of a segment is that of its last line.
"""

import json
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import pydantic

from rljob_workers.local import processes


class Entry(pydantic.BaseModel):
    """One line. `at` is unix seconds; `peaks` are bytes by role; `attempt` counts starts of the trainer.

    rollout_wait_share: of the sliding window that ends with `step`, 0..1.
    """

    model_config = pydantic.ConfigDict(frozen=True)

    event: Literal["segment", "started", "ended", "step", "beat", "segment_end"]
    at: float
    name: str = ""
    role: str = ""
    attempt: int = 0
    code: int | None = None
    detail: str = ""
    peaks: dict[str, int] = {}
    step: int = 0
    rollout_wait_share: float | None = None


class Journal:
    """Appends entries to a file; each is on disk when `write` returns."""

    def __init__(self, path: pathlib.Path) -> None:
        """Open for appending, on a line of its own: a crash may have cut the last one."""
        cut = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
        self._file = path.open("a", encoding="utf-8")
        if cut:
            self._file.write("\n")

    def write(self, entry: Entry) -> None:
        self._file.write(
            json.dumps(entry.model_dump(exclude_defaults=True) | {"event": entry.event, "at": entry.at}) + "\n"
        )
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read(path: pathlib.Path) -> list[Entry]:
    """Return the entries, none if there is no file. A line that was cut by a crash is left out."""
    return list(iterate(path))


def iterate(path: pathlib.Path) -> Iterator[Entry]:
    """Yield the entries one by one, as `read` returns them."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            entry = parse(line)
            if entry is not None:
                yield entry


def parse(line: str) -> Entry | None:
    """Return the entry of a line, None if a crash cut it: every complete one was synced before the next was begun."""
    try:
        return Entry.model_validate_json(line)
    except pydantic.ValidationError:
        return None


def wall_s(entries: Sequence[Entry]) -> float:
    """Return the seconds during which the runner was at work, over all segments."""
    total, begin, last = 0.0, None, 0.0
    for entry in entries:
        if entry.event == "segment":
            total += 0.0 if begin is None else last - begin
            begin = entry.at
        last = entry.at
    return total + (0.0 if begin is None else last - begin)


def last_attempt(entries: Sequence[Entry]) -> int:
    """Return the number of the newest trainer attempt, 0 if there was none."""
    return max((entry.attempt for entry in entries), default=0)


def peaks(entries: Sequence[Entry]) -> Mapping[str, int]:
    """Return the memory peaks in bytes by role over all segments."""
    memory = processes.PeakMemory()
    for entry in entries:
        memory.merge(entry.peaks)
    return memory.peaks


def rollout_wait_shares(entries: Sequence[Entry]) -> Mapping[int, float]:
    """Return the rollouts' wait share by step."""
    return {entry.step: entry.rollout_wait_share for entry in entries if entry.rollout_wait_share is not None}


def restarts(entries: Sequence[Entry]) -> list[Entry]:
    """Return the endings that were followed by a new start."""
    return [entry for entry in entries if entry.event == "ended" and entry.detail.startswith("restart")]


def broken(entries: Sequence[Entry]) -> list[Entry]:
    """Return the endings, with another code than 0, of processes that the newest segment has not started again."""
    last: dict[str, Entry] = {}
    for entry in entries:
        if entry.event == "segment":
            last = {}
        elif entry.event in ("started", "ended"):
            last[entry.name] = entry
    return [entry for entry in last.values() if entry.event == "ended" and entry.code != 0]
