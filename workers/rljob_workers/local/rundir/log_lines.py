"""Log lines of a run's processes, merged by time, in bounded memory; log files are read on as they grow.

Our processes write JSON lines with a time; the libraries in them, and a crash, write what they like. A line without a
time of its own has the time of the line before it in the same stream, so that a traceback stays together.
"""

import dataclasses
import datetime
import heapq
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping

from rljob_workers.local.rundir import bounded_lines, journal, layout

# A line of ours may carry a stack; of anything longer only the start is kept.
MAX_LINE_BYTES = 256 << 10
RUNNER = "runner"
# Events of the runner's journal that are shown as log lines.
_SHOWN_EVENTS = ("segment", "started", "ended", "segment_end")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line. at: unix seconds. source: the process or pod. fields: of a line of ours, else empty; msg: the text."""

    at: float
    source: str
    msg: str
    fields: Mapping[str, object] = dataclasses.field(default_factory=dict)

    @property
    def step(self) -> int | None:
        """Return the step that the line says it is about."""
        step = self.fields.get("step")
        return step if isinstance(step, int) and not isinstance(step, bool) else None


def parse(text: str, *, source: str, before: float) -> Line:
    """Return the line. `before`: the time of the line before it, which it never precedes."""
    fields = _fields(text)
    if fields is None:
        # A progress bar writes one line over and over; a terminal would have shown its last state.
        shown = [part for part in text.split("\r") if part.strip()]
        return Line(at=before, source=source, msg=shown[-1] if shown else "")
    return Line(at=max(before, unix_s(fields["ts"], before)), source=source, msg=str(fields["msg"]), fields=fields)


def stream(texts: Iterable[str], *, source: str, before: float = 0.0) -> Iterator[Line]:
    """Yield the lines of one stream, times never falling."""
    for text in texts:
        line = parse(text, source=source, before=before)
        before = line.at
        yield line


def merge(streams: Iterable[Iterable[Line]]) -> Iterator[Line]:
    """Yield the lines of all streams by time, holding one line of each; each stream keeps its order."""
    return heapq.merge(*streams, key=lambda line: line.at)


def unix_s(text: object, default: float) -> float:
    """Return an RFC 3339 time as unix seconds, `default` if it is none; without an offset it is UTC."""
    try:
        time = datetime.datetime.fromisoformat(str(text))
    except ValueError:
        return default
    return (time if time.tzinfo else time.replace(tzinfo=datetime.UTC)).timestamp()


def _fields(text: str) -> Mapping[str, object] | None:
    if not text.startswith("{"):
        return None
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) and {"ts", "msg"} <= fields.keys() else None


Parse = Callable[[str, float], Line | None]


class LogFile:
    """One file. Each reading continues where the one before ended."""

    def __init__(self, path: pathlib.Path, parse: Parse, *, begins_at: float) -> None:
        """Open the file. `begins_at` is the time of lines before the first that has one. Raises OSError."""
        self._stream, self._parse, self._at = path.open("rb"), parse, begins_at

    def read(self, *, partial: bool) -> Iterator[Line]:
        """Yield the lines written since; a last one that is still being written only if `partial`."""
        start = self._stream.tell()
        for raw in bounded_lines.read(self._stream, max_bytes=MAX_LINE_BYTES):
            if not raw.complete and not partial:
                self._stream.seek(start)
                return
            start = self._stream.tell()
            line = self._parse(raw.data.decode("utf-8", errors="replace"), self._at)
            if line is not None:
                self._at = line.at
                yield line

    def close(self) -> None:
        self._stream.close()


class Logs:
    """All logs of a run, those of processes that appear later too; the runner's own journal among them."""

    def __init__(self, directory: layout.RunDir) -> None:
        """Nothing is opened yet."""
        self._directory = directory
        self._files: dict[str, LogFile] = {}

    def sources(self) -> list[str]:
        """Return the processes that have a log, the runner first."""
        runner = [RUNNER] if self._directory.journal.exists() else []
        return [*runner, *sorted(path.stem for path in self._directory.logs.glob("*.jsonl"))]

    def read(self, *, partial: bool) -> Iterator[Line]:
        """Yield what was written since the last reading, by time. See `LogFile.read`."""
        for source in self.sources():
            if source not in self._files:
                self._files[source] = self._open(source)
        return merge([file.read(partial=partial) for file in self._files.values()])

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def _open(self, source: str) -> LogFile:
        if source == RUNNER:
            return LogFile(self._directory.journal, runner_line, begins_at=0.0)

        def parse_line(text: str, before: float) -> Line:
            return parse(text, source=source, before=before)

        return LogFile(self._directory.logs / f"{source}.jsonl", parse_line, begins_at=self._started_at(source))

    def _started_at(self, source: str) -> float:
        started = (entry.at for entry in journal.iterate(self._directory.journal) if entry.name == source)
        return next(started, 0.0)


def runner_line(text: str, before: float) -> Line | None:
    """Return what a line of the runner's journal shows as a log line, None for heartbeats and half a line."""
    entry = journal.parse(text)
    if entry is None or entry.event not in _SHOWN_EVENTS:
        return None
    failed = entry.event == "ended" and entry.code != 0
    at = max(before, entry.at)
    return Line(
        at=at,
        source=RUNNER,
        msg=_sentence(entry),
        fields={
            "ts": datetime.datetime.fromtimestamp(entry.at, datetime.UTC).isoformat(timespec="milliseconds"),
            "level": "warning" if failed else "info",
            "msg": _sentence(entry),
            "event": entry.event,
            **({"process": entry.name} if entry.name else {}),
            **({"code": entry.code} if entry.code is not None else {}),
        },
    )


def _sentence(entry: journal.Entry) -> str:
    if entry.event == "segment":
        return "the run started or resumed"
    if entry.event == "segment_end":
        return f"the run ended: {entry.detail or 'no reason was recorded'}"
    if entry.event == "started":
        return f"started {entry.name}" + (f", attempt {entry.attempt}" if entry.attempt else "")
    return f"{entry.name} ended with code {entry.code}" + (f": {entry.detail}" if entry.detail else "")
