"""`rljob status`."""

import collections
import dataclasses
import json
import pathlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from rljob_api import enums, types, waiting
from rljob_workers.cli import choices, locate, logs, why_text
from rljob_workers.local import processes
from rljob_workers.local.run import child, live, progress, supervise
from rljob_workers.local.rundir import history, journal, layout, log_lines

PERIOD_S = 2.0
# Unlike any key.
_NOTHING = object()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is seen at one moment. goes_on: it may be another thing later.

    line: the same in one line; reported where lines are, as often as `key` is another one. JSON has none: all of it is
    new.
    """

    text: str
    goes_on: bool
    line: str = ""
    key: object = None


def repeat(
    look: Callable[[], Look],
    *,
    again: bool,
    redraw: bool = True,
    stream: TextIO | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Print what `look` returns; if `again`, until the run ends. `redraw`: in place, if `stream` is a
    terminal.
    """
    output = sys.stdout if stream is None else stream
    if again and redraw and output.isatty():
        _redraw(look, output, wait)
        return
    last: object = _NOTHING
    while True:
        view = look()
        if not again or not view.line:
            print(view.text, file=output, flush=True)
        elif view.key != last:
            print(view.line, file=output, flush=True)
        last = view.key
        if not again or not view.goes_on:
            return
        wait(PERIOD_S)


def _redraw(look: Callable[[], Look], stream: TextIO, wait: Callable[[float], None]) -> None:
    # Imported here: a terminal library is needed by this alone.
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(Text(""), console=Console(file=stream, highlight=False), auto_refresh=False) as view:
        while True:
            current = look()
            # As plain text: brackets in it are not a markup.
            view.update(Text(current.text), refresh=True)
            if not current.goes_on:
                return
            wait(PERIOD_S)


def status(job: str, *, run_dir: pathlib.Path | None, as_json: bool, again: bool) -> int:
    """Print the status of the run, or its last one; `again` and again until it ends.

    Raises ManifestError if there is no such run.
    """
    directory = locate.locate(job, run_dir)

    def look() -> Look:
        run_status = live.ask(directory)
        goes_on = live.is_running(directory)
        if as_json:
            return Look(text=_as_json(directory, run_status, indent=None if again else 1), goes_on=goes_on)
        states, key = live.states(directory), _key(run_status, goes_on)
        if run_status is None and not any(state.running for state in states.values()):
            last = last_state(directory)
            return Look(text=last, line=last, key=key, goes_on=goes_on)
        return Look(text=_as_text(run_status, states), line=whole_line(run_status, states), key=key, goes_on=goes_on)

    repeat(look, again=again, redraw=not as_json)
    return int(enums.ExitCode.OK)


def _as_json(directory: layout.RunDir, run_status: types.RunStatus | None, *, indent: int | None) -> str:
    pids = {name: pid for name, pid in live.pids(directory).items() if processes.is_running(pid)}
    body = {
        "run_dir": str(directory.path),
        "running": bool(pids),
        "pids": pids,
        "status": None if run_status is None else dataclasses.asdict(run_status),
        "last_step": len(history.read(directory.history).steps),
    }
    return json.dumps(body, indent=indent)


def _as_text(run_status: types.RunStatus | None, states: Mapping[str, supervise.State]) -> str:
    lines = [progress.role_line(name, state, run_status) for name, state in states.items()]
    lines.append(progress.phase_line(run_status, states))
    if run_status is not None:
        lines.append(_as_line(run_status, states))
        lines.append(waiting.chain_of(run_status).message(time.time()))
        lines += why_text.loss_sentences(
            left_out=run_status.left_out,
            dump_failures=run_status.dump_failures,
            storage_problem=run_status.storage_problem,
        )
    return "\n".join(line for line in lines if line)


def whole_line(run_status: types.RunStatus | None, states: Mapping[str, supervise.State]) -> str:
    """Return all that fits into one line: progress, and the supervised step if the run is in one."""
    line = _as_line(run_status, states)
    supervised = "" if run_status is None else progress.supervised_step(run_status.step, run_status.sft_steps)
    return f"{line}  {supervised}" if supervised else line


def _as_line(run_status: types.RunStatus | None, states: Mapping[str, supervise.State]) -> str:
    if run_status is None:
        return progress.phase_line(None, states)
    desired = sum(state.role is enums.Role.ROLLOUT for state in states.values())
    return progress.progress_line(run_status, rollouts_wanted=desired)


def _key(run_status: types.RunStatus | None, goes_on: bool) -> tuple[object, ...]:
    """Return what is news: a step, another phase, the end."""
    return (goes_on,) if run_status is None else (goes_on, run_status.step, run_status.phase, run_status.reason)


def last_state(directory: layout.RunDir) -> str:
    """Return what the run had reached when it last ran."""
    run, entries = history.read(directory.history), journal.read(directory.journal)
    identity = directory.identity()
    ended = next((entry for entry in reversed(entries) if entry.event in ("segment", "segment_end")), None)
    how = "was never started" if ended is None else (ended.detail or "was killed")
    if identity is not None and identity.finished:
        how = "finished"
    parts = [f"not running ({how})", f"step {run.steps[-1].step}" if run.steps else "no step yet"]
    if run.rewards:
        parts.append(f"reward {run.rewards[-1]:.2f}")
    if run.checkpoints:
        parts.append(f"checkpoint of step {run.checkpoints[-1]}")
    parts += [f"{result.suite} {result.accuracy:.1%} at step {result.step}" for result in run.evaluations[-1:]]
    return "  ".join(parts)


NUM_EVENTS = 8
# A chain of waiters is normal for this long: a batch, a pause for weights. After it the blocking process is named.
_NAMED_S = 30.0
# Groups come and go all the time where each is filtered out: the run moves, and makes no step.
_WHILE_MOVING = "FilterStarvation"
NUM_LAST_LINES = 4
_OURS = "rljob"


def why(job: str, *, run_dir: pathlib.Path | None, as_json: bool, num_events: int = NUM_EVENTS) -> int:
    """Print who waits for whom, who holds the run up, and the last events. Raises ManifestError without such a run."""
    directory = locate.locate(job, run_dir)
    now = time.time()
    explanation = account(
        directory,
        live.ask(directory),
        states=live.states(directory),
        events=_last_events(directory, num_events),
        now=now,
    )
    show(explanation, as_json=as_json, now=now)
    return int(enums.ExitCode.OK)


def show(explanation: why_text.Account, *, as_json: bool, now: float) -> None:
    print(
        json.dumps(why_text.as_json(explanation), indent=1) if as_json else "\n".join(why_text.lines(explanation, now))
    )


def account(
    directory: layout.RunDir,
    run_status: types.RunStatus | None,
    *,
    states: Mapping[str, supervise.State],
    events: Sequence[log_lines.Line],
    now: float,
) -> why_text.Account:
    """Return the account of a run: what the coordinator says (None if it does not answer) and what the runner wrote."""
    identity = directory.identity()
    assert identity is not None, "`locate` returns existing runs only"
    entries = journal.read(directory.journal)
    runs = run_status is not None or any(state.running for state in states.values())
    down = [_down(entry, directory) for entry in journal.broken(entries)]
    if run_status is None:
        lost = runs and not down
        return why_text.Account(
            job=identity.name,
            headline="running; the coordinator does not answer" if runs else last_state(directory),
            running=runs,
            down=down,
            diagnosis=waiting.unreachable(since=_coordinator_since(entries)) if lost else None,
            events=events,
        )
    idle_s = max(0.0, now - run_status.last_progress_at) if run_status.last_progress_at else None
    limit_s = _stalled_after_s(identity.spec) if run_status.first_step_at else None
    return why_text.Account(
        job=identity.name,
        headline=f"{progress.phase_line(run_status, states)}; {run_status.step} of {run_status.max_steps} steps done",
        running=True,
        idle_s=idle_s,
        stalled_after_s=limit_s,
        links=waiting.chain_of(run_status).links,
        storage_problem=run_status.storage_problem,
        concerns=run_status.concerns,
        down=down,
        diagnosis=None if down else _held_up_by(run_status, idle_s=idle_s, limit_s=limit_s, now=now),
        events=events,
    )


def _held_up_by(
    run_status: types.RunStatus, *, idle_s: float | None, limit_s: float | None, now: float
) -> waiting.Diagnosis | None:
    """Return what blocks a run that has not moved for a while, or that moves without a step; None if there is none to
    name yet.
    """
    if run_status.reason == _WHILE_MOVING:
        return waiting.diagnose(run_status, now=now)
    if idle_s is None:
        return None
    is_stalled = limit_s is not None and idle_s >= limit_s
    tells = bool(run_status.waiting or run_status.reason)
    return waiting.diagnose(run_status, now=now) if is_stalled or (tells and idle_s >= _NAMED_S) else None


def _stalled_after_s(spec: Mapping[str, object]) -> float | None:
    """Return spec.failurePolicy.stall.timeoutSeconds of a recorded spec."""
    node: object = spec
    for key in ("failurePolicy", "stall", "timeoutSeconds"):
        node = node.get(key) if isinstance(node, Mapping) else None
    return float(node) if isinstance(node, int | float) else None


def _coordinator_since(entries: Sequence[journal.Entry]) -> float:
    own = [entry.at for entry in entries if entry.event == "started" and entry.role == enums.Role.COORDINATOR]
    return own[-1] if own else 0.0


def _down(entry: journal.Entry, directory: layout.RunDir) -> why_text.StoppedProcess:
    return why_text.StoppedProcess(
        name=entry.name,
        sentence=f"{entry.name} ended with code {entry.code}" + (f": {entry.detail}" if entry.detail else ""),
        last_lines=child.last_lines(directory.logs / f"{entry.name}.jsonl", NUM_LAST_LINES),
    )


def _last_events(directory: layout.RunDir, count: int) -> list[log_lines.Line]:
    logs = log_lines.Logs(directory)
    try:
        return list(collections.deque(filter(_is_event, logs.read(partial=True)), maxlen=count))
    finally:
        logs.close()


def _is_event(line: log_lines.Line) -> bool:
    """Return whether a line is a start or ending, a warning of ours, or an error of any process."""
    if line.source == log_lines.RUNNER:
        return True
    ours = str(line.fields.get("logger", "")).startswith(_OURS)
    least = choices.Level.WARNING if ours else choices.Level.ERROR
    return logs.LineFilter(level=least).matches(line)
