"""Log lines of a run's processes and their order. Pure: text in, lines out.

Our processes write JSON lines with a time; the libraries in them, and a crash, write what they like. A line without a
time of its own has the time of the line before it in the same stream, so that a traceback stays together.
"""

import dataclasses
import datetime
import heapq
import json
from collections.abc import Iterable, Iterator, Mapping

# A line of ours may carry a stack; of anything longer only the start is kept.
MAX_LINE_BYTES = 256 << 10


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
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and {"ts", "msg"} <= found.keys() else None
