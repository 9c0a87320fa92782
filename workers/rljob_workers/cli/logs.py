"""`rljob logs`."""

import collections
import dataclasses
import datetime
import json
import math
import pathlib
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from rljob_api import enums, errors
from rljob_workers.cli import choices, locate
from rljob_workers.local import terminal
from rljob_workers.local.run import live
from rljob_workers.local.rundir import history, layout, log_lines

_SEVERITY: tuple[object, ...] = tuple(choices.Level)
_SHOWN_KEYS = ("step", "version", "group", "sample", "rank", "error_class", "error_reason")
_SOURCE_WIDTH = 12
_AGO = re.compile(r"(\d{1,9})([smhd])")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_STEPS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Steps `first` to `last`, and when they were worked on: after `after` until `until`, unix seconds."""

    first: int
    last: int
    after: float = math.inf
    until: float = -math.inf

    def matches(self, line: log_lines.Line) -> bool:
        """Return whether a line is about these steps: it says so, or says nothing and was written meanwhile."""
        if line.step is not None:
            return self.first <= line.step <= self.last
        return self.after < line.at <= self.until


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LineFilter:
    """Empty means all. Lines without a level, those of libraries and of crashes, count as `info`."""

    steps: Steps | None = None
    groups: Collection[str] = ()
    level: choices.Level = choices.Level.DEBUG
    since: float = -math.inf

    def matches(self, line: log_lines.Line) -> bool:
        if line.at < self.since or _severity(line.fields.get("level")) < _severity(self.level):
            return False
        if self.groups and line.fields.get("group") not in self.groups:
            return False
        return self.steps is None or self.steps.matches(line)


def parse_steps(text: str, ends: Mapping[int, float]) -> Steps:
    """Return the steps that `--step` asks for: "7" or "5-9". `ends`: when steps were finished, unix seconds.

    Step k is worked on from the end of step k - 1 to its own; the first one from the beginning. Raises ManifestError.
    """
    match = _STEPS.fullmatch(text.strip())
    first = int(match[1]) if match else 0
    last = int(match[2] or match[1]) if match else 0
    if not 1 <= first <= last:
        raise errors.ManifestError(f"--step is {text!r}, but must be a step such as 7 or a range such as 5-9")
    if not ends:
        return Steps(first=first, last=last)
    after = -math.inf if first == 1 else ends.get(first - 1, math.inf)
    return Steps(first=first, last=last, after=after, until=ends.get(last, math.inf))


def parse_since(text: str, now: float) -> float:
    """Return the unix time that `--since` means: "10m" ago, or a time of RFC 3339. Raises ManifestError."""
    if match := _AGO.fullmatch(text):
        return now - int(match[1]) * _UNIT_S[match[2]]
    at = log_lines.unix_s(text, math.nan)
    if math.isnan(at):
        raise errors.ManifestError(
            f"--since is {text!r}, but must be a span such as 30s, 10m, 2h or 1d, or a time as 2026-01-31T12:00:00Z"
        )
    return at


def checked_roles(roles: Collection[str], sources: Collection[str]) -> frozenset[str]:
    """Return those of `sources` that are of the roles (or processes) asked for, all if none is.

    Raises ManifestError for one that there is not.
    """
    for role in roles:
        if not any(source == role or source.startswith(f"{role}-") for source in sources):
            available = ", ".join(dict.fromkeys([*sources])) or "none"
            raise errors.ManifestError(
                f"--role is {role!r}, but must be a role ({', '.join(enums.Role)}) or process; available: {available}"
            )
    chosen = [s for s in sources if not roles or any(s == role or s.startswith(f"{role}-") for role in roles)]
    return frozenset(chosen)


def line_as_json(line: log_lines.Line) -> dict[str, object]:
    """Return the line's fields and its source; one without fields of its own has time, source and text."""
    return {"ts": _time(line.at, "T"), "msg": line.msg, **line.fields, "source": line.source}


def line_as_text(line: log_lines.Line) -> list[str]:
    """Return the line for a terminal, and a stack below it."""
    level = line.fields.get("level")
    prefix = "" if level in (None, "info", "debug") else f"{terminal.line(str(level))}: "
    keys = [f"{key}={terminal.line(str(line.fields[key]))}" for key in _SHOWN_KEYS if key in line.fields]
    head = f"{_time(line.at, ' ')} {terminal.line(line.source):<{_SOURCE_WIDTH}} {prefix}{terminal.line(line.msg)}"
    stack = str(line.fields.get("exc", ""))
    return [
        f"{head}  {' '.join(keys)}" if keys else head,
        *(f"    {frame}" for frame in terminal.block(stack) if frame),
    ]


def _severity(level: object) -> int:
    return _SEVERITY.index(level) if level in _SEVERITY else _SEVERITY.index(choices.Level.INFO)


def _time(at: float, between: str) -> str:
    text = datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat(sep=between, timespec="milliseconds")
    return text if between == "T" else text.split("+")[0]


_FOLLOW_S = 0.5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to show and how. tail None: all lines, else the last ones; follow: until the run ends."""

    roles: Sequence[str] = ()
    step: str = ""
    groups: Sequence[str] = ()
    level: choices.Level = choices.Level.DEBUG
    since: str = ""
    tail: int | None = None
    follow: bool = False
    as_json: bool = False


def logs(
    job: str, *, run_dir: pathlib.Path | None, options: Options, wait: Callable[[float], None] = time.sleep
) -> int:
    """Print the log lines of all processes of a run by time. Raises ManifestError for bad options or no such run."""
    directory = locate.locate(job, run_dir)
    line_filter = filter_of(options, directory)
    run_logs = log_lines.Logs(directory)
    checked_roles(options.roles, run_logs.sources())
    tail = options.tail
    try:
        while True:
            # Asked before the reading: what an ended process wrote last is read whole.
            goes_on = options.follow and live.is_running(directory)
            sources = checked_roles(options.roles, run_logs.sources())
            lines = (
                line
                for line in run_logs.read(partial=not goes_on)
                if line.source in sources and line_filter.matches(line)
            )
            show(lines if tail is None else collections.deque(lines, maxlen=tail), as_json=options.as_json)
            if not goes_on:
                return int(enums.ExitCode.OK)
            tail = None
            wait(_FOLLOW_S)
    finally:
        run_logs.close()


def filter_of(options: Options, directory: layout.RunDir | None) -> LineFilter:
    """Return which lines the options ask for. Without a run directory a step's lines are those that name it."""
    ends = {} if directory is None else history.step_ends(directory.history)
    return LineFilter(
        steps=parse_steps(options.step, ends) if options.step else None,
        groups=options.groups,
        level=options.level,
        since=parse_since(options.since, time.time()) if options.since else float("-inf"),
    )


def show(lines: Iterable[log_lines.Line], *, as_json: bool) -> None:
    for line in lines:
        print(json.dumps(line_as_json(line)) if as_json else "\n".join(line_as_text(line)), flush=True)
