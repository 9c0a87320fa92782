"""`rljob why` of a run on this machine."""

import collections
import json
import pathlib
import time
from collections.abc import Mapping, Sequence

from rljob_api import names, types, waiting
from rljob_workers.cli import choices, locate, log_text, status, why_text
from rljob_workers.local import child, journal, log_files, log_lines, progress, rundir, running, supervise

NUM_EVENTS = 8
# A chain of waiters is normal for this long: a batch, a pause for weights. After it somebody is named.
_NAMED_S = 30.0
# Groups come and go all the time where each is filtered out: the run moves, and makes no step.
_WHILE_MOVING = "FilterStarvation"
NUM_LAST_LINES = 4
_OURS = "rljob"


def why(job: str, *, run_dir: pathlib.Path | None, as_json: bool, num_events: int = NUM_EVENTS) -> int:
    """Print who waits for whom, who holds the run up, and the last events. Raises ManifestError without such a run."""
    directory = locate.locate(job, run_dir)
    now = time.time()
    told = account(
        directory,
        running.ask(directory),
        states=running.states(directory),
        events=_last_events(directory, num_events),
        now=now,
    )
    show(told, as_json=as_json, now=now)
    return int(names.ExitCode.OK)


def show(told: why_text.Account, *, as_json: bool, now: float) -> None:
    """Print an account."""
    print(json.dumps(why_text.as_json(told), indent=1) if as_json else "\n".join(why_text.lines(told, now)))


def account(
    directory: rundir.RunDir,
    known: types.RunStatus | None,
    *,
    states: Mapping[str, supervise.State],
    events: Sequence[log_lines.Line],
    now: float,
) -> why_text.Account:
    """Return the account of a run: what the coordinator says (None if it does not answer) and what the runner wrote."""
    identity = directory.identity()
    assert identity is not None, "`locate` returns existing runs only"
    entries = journal.read(directory.journal)
    runs = known is not None or any(state.running for state in states.values())
    down = [_down(entry, directory) for entry in journal.broken(entries)]
    if known is None:
        lost = runs and not down
        return why_text.Account(
            job=identity.name,
            headline="running; the coordinator does not answer" if runs else status.last_state(directory),
            running=runs,
            down=down,
            diagnosis=waiting.unreachable(since=_coordinator_since(entries)) if lost else None,
            events=events,
        )
    idle_s = max(0.0, now - known.last_progress_at) if known.last_progress_at else None
    limit_s = _stalled_after_s(identity.spec) if known.first_step_at else None
    return why_text.Account(
        job=identity.name,
        headline=f"{progress.phase_line(known, states)}; {known.step} of {known.max_steps} steps done",
        running=True,
        idle_s=idle_s,
        stalled_after_s=limit_s,
        links=waiting.chain_of(known).links,
        down=down,
        diagnosis=None if down else _held_up_by(known, idle_s=idle_s, limit_s=limit_s, now=now),
        events=events,
    )


def _held_up_by(
    known: types.RunStatus, *, idle_s: float | None, limit_s: float | None, now: float
) -> waiting.Diagnosis | None:
    """Return who holds a run up that has not moved for a while, or that moves without a step; None if nobody is to be
    named yet.
    """
    if known.reason == _WHILE_MOVING:
        return waiting.diagnose(known, now=now)
    if idle_s is None:
        return None
    is_stalled = limit_s is not None and idle_s >= limit_s
    tells = bool(known.waiting or known.reason)
    return waiting.diagnose(known, now=now) if is_stalled or (tells and idle_s >= _NAMED_S) else None


def _stalled_after_s(spec: Mapping[str, object]) -> float | None:
    """Return spec.failurePolicy.stall.timeoutSeconds of a recorded spec."""
    found: object = spec
    for key in ("failurePolicy", "stall", "timeoutSeconds"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return float(found) if isinstance(found, int | float) else None


def _coordinator_since(entries: Sequence[journal.Entry]) -> float:
    own = [entry.at for entry in entries if entry.event == "started" and entry.role == names.Role.COORDINATOR]
    return own[-1] if own else 0.0


def _down(entry: journal.Entry, directory: rundir.RunDir) -> why_text.Down:
    return why_text.Down(
        name=entry.name,
        sentence=f"{entry.name} ended with code {entry.code}" + (f": {entry.detail}" if entry.detail else ""),
        last_lines=child.last_lines(directory.logs / f"{entry.name}.jsonl", NUM_LAST_LINES),
    )


def _last_events(directory: rundir.RunDir, count: int) -> list[log_lines.Line]:
    found = log_files.Logs(directory)
    try:
        return list(collections.deque(filter(_is_event, found.read(partial=True)), maxlen=count))
    finally:
        found.close()


def _is_event(line: log_lines.Line) -> bool:
    """Return whether a line is a start or ending, a warning of ours, or an error of anybody's."""
    if line.source == log_files.RUNNER:
        return True
    ours = str(line.fields.get("logger", "")).startswith(_OURS)
    least = choices.Level.WARNING if ours else choices.Level.ERROR
    return log_text.Wanted(level=least).matches(line)
