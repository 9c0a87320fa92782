"""`rljob logs`."""

import collections
import dataclasses
import json
import pathlib
import time
from collections.abc import Callable, Iterable, Sequence

from rljob_api import names
from rljob_workers.cli import choices, locate, log_text
from rljob_workers.local import history, log_files, log_lines, rundir, running

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
    wanted = wanted_lines(options, directory)
    found = log_files.Logs(directory)
    log_text.checked_roles(options.roles, found.sources())
    tail = options.tail
    try:
        while True:
            # Asked before the reading: what an ended process wrote last is read whole.
            goes_on = options.follow and running.is_running(directory)
            sources = log_text.checked_roles(options.roles, found.sources())
            lines = (
                line for line in found.read(partial=not goes_on) if line.source in sources and wanted.matches(line)
            )
            show(lines if tail is None else collections.deque(lines, maxlen=tail), as_json=options.as_json)
            if not goes_on:
                return int(names.ExitCode.OK)
            tail = None
            wait(_FOLLOW_S)
    finally:
        found.close()


def wanted_lines(options: Options, directory: rundir.RunDir | None) -> log_text.Wanted:
    """Return which lines the options ask for. Without a run directory a step's lines are those that name it."""
    ends = {} if directory is None else history.step_ends(directory.history)
    return log_text.Wanted(
        steps=log_text.steps(options.step, ends) if options.step else None,
        groups=options.groups,
        level=options.level,
        since=log_text.since(options.since, time.time()) if options.since else float("-inf"),
    )


def show(lines: Iterable[log_lines.Line], *, as_json: bool) -> None:
    """Print lines, one JSON object each or as text."""
    for line in lines:
        print(json.dumps(log_text.as_json(line)) if as_json else "\n".join(log_text.as_text(line)), flush=True)
