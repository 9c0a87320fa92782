"""The logs of a run directory, read in bounded memory and again as they grow."""

import datetime
import pathlib
from collections.abc import Callable, Iterator

from rljob_workers.local import bounded_lines, journal, log_lines, rundir

RUNNER = "runner"
_TOLD = ("segment", "started", "ended", "segment_end")

Parse = Callable[[str, float], log_lines.Line | None]


class LogFile:
    """One file. Each reading goes on where the one before ended."""

    def __init__(self, path: pathlib.Path, parse: Parse, *, begins_at: float) -> None:
        """Open the file. `begins_at` is the time of lines before the first that has one. Raises OSError."""
        self._stream, self._parse, self._at = path.open("rb"), parse, begins_at

    def read(self, *, partial: bool) -> Iterator[log_lines.Line]:
        """Yield the lines written since; a last one that is still being written only if `partial`."""
        start = self._stream.tell()
        for raw in bounded_lines.read(self._stream, max_bytes=log_lines.MAX_LINE_BYTES):
            if not raw.complete and not partial:
                self._stream.seek(start)
                return
            start = self._stream.tell()
            line = self._parse(raw.data.decode("utf-8", errors="replace"), self._at)
            if line is not None:
                self._at = line.at
                yield line

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


class Logs:
    """All logs of a run, those of processes that appear later too; the runner's own journal among them."""

    def __init__(self, directory: rundir.RunDir) -> None:
        """Keep the directory; nothing is opened yet."""
        self._directory = directory
        self._files: dict[str, LogFile] = {}

    def sources(self) -> list[str]:
        """Return the processes that have a log, the runner first."""
        runner = [RUNNER] if self._directory.journal.exists() else []
        return [*runner, *sorted(path.stem for path in self._directory.logs.glob("*.jsonl"))]

    def read(self, *, partial: bool) -> Iterator[log_lines.Line]:
        """Yield what was written since the last reading, by time. See `LogFile.read`."""
        for source in self.sources():
            if source not in self._files:
                self._files[source] = self._open(source)
        return log_lines.merge([file.read(partial=partial) for file in self._files.values()])

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()

    def _open(self, source: str) -> LogFile:
        if source == RUNNER:
            return LogFile(self._directory.journal, runner_line, begins_at=0.0)

        def parse(text: str, before: float) -> log_lines.Line:
            return log_lines.parse(text, source=source, before=before)

        return LogFile(self._directory.logs / f"{source}.jsonl", parse, begins_at=self._started_at(source))

    def _started_at(self, source: str) -> float:
        started = (entry.at for entry in journal.iterate(self._directory.journal) if entry.name == source)
        return next(started, 0.0)


def runner_line(text: str, before: float) -> log_lines.Line | None:
    """Return what a line of the runner's journal tells as a log line, None for heartbeats and half a line."""
    entry = journal.parse(text)
    if entry is None or entry.event not in _TOLD:
        return None
    failed = entry.event == "ended" and entry.code != 0
    at = max(before, entry.at)
    return log_lines.Line(
        at=at,
        source=RUNNER,
        msg=_told(entry),
        fields={
            "ts": datetime.datetime.fromtimestamp(entry.at, datetime.UTC).isoformat(timespec="milliseconds"),
            "level": "warning" if failed else "info",
            "msg": _told(entry),
            "event": entry.event,
            **({"process": entry.name} if entry.name else {}),
            **({"code": entry.code} if entry.code is not None else {}),
        },
    )


def _told(entry: journal.Entry) -> str:
    if entry.event == "segment":
        return "the run began or went on"
    if entry.event == "segment_end":
        return f"the run ended: {entry.detail or 'without a word'}"
    if entry.event == "started":
        return f"started {entry.name}" + (f", attempt {entry.attempt}" if entry.attempt else "")
    return f"{entry.name} ended with code {entry.code}" + (f": {entry.detail}" if entry.detail else "")
