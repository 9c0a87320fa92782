"""`rljob status`."""

import dataclasses
import json
import pathlib
import time
from collections.abc import Mapping

from rljob_api import names, types, waiting
from rljob_workers.cli import locate, losses, watch
from rljob_workers.local import history, journal, process_tree, progress, rundir, running, supervise


def status(job: str, *, run_dir: pathlib.Path | None, as_json: bool, again: bool) -> int:
    """Print how the run stands, or stood last; `again` and again until it ends.

    Raises ManifestError if there is no such run.
    """
    directory = locate.locate(job, run_dir)

    def look() -> watch.Look:
        known = running.ask(directory)
        goes_on = running.is_running(directory)
        if as_json:
            return watch.Look(text=_as_json(directory, known, indent=None if again else 1), goes_on=goes_on)
        states, key = running.states(directory), _key(known, goes_on)
        if known is None and not any(state.running for state in states.values()):
            last = last_state(directory)
            return watch.Look(text=last, line=last, key=key, goes_on=goes_on)
        return watch.Look(text=_as_text(known, states), line=_as_line(known, states), key=key, goes_on=goes_on)

    watch.show(look, again=again, redraw=not as_json)
    return int(names.ExitCode.OK)


def _as_json(directory: rundir.RunDir, known: types.RunStatus | None, *, indent: int | None) -> str:
    pids = {name: pid for name, pid in running.pids(directory).items() if process_tree.is_running(pid)}
    body = {
        "run_dir": str(directory.path),
        "running": bool(pids),
        "pids": pids,
        "status": None if known is None else dataclasses.asdict(known),
        "last_step": len(history.read(directory.history).steps),
    }
    return json.dumps(body, indent=indent)


def _as_text(known: types.RunStatus | None, states: Mapping[str, supervise.State]) -> str:
    lines = [progress.role_line(name, state, known) for name, state in states.items()]
    lines.append(progress.phase_line(known, states))
    if known is not None:
        lines.append(_as_line(known, states))
        lines.append(waiting.chain_of(known).message(time.time()))
        lines += losses.sentences(left_out=known.left_out, dump_failures=known.dump_failures)
    return "\n".join(line for line in lines if line)


def _as_line(known: types.RunStatus | None, states: Mapping[str, supervise.State]) -> str:
    if known is None:
        return progress.phase_line(None, states)
    wanted = sum(state.role is names.Role.ROLLOUT for state in states.values())
    return progress.progress_line(known, rollouts_wanted=wanted)


def _key(known: types.RunStatus | None, goes_on: bool) -> tuple[object, ...]:
    """Return what is news: a step, another phase, the end."""
    return (goes_on,) if known is None else (goes_on, known.step, known.phase, known.reason)


def last_state(directory: rundir.RunDir) -> str:
    """Return what the run had reached when it last ran."""
    run, entries = history.read(directory.history), journal.read(directory.journal)
    identity = directory.identity()
    ended = next((entry for entry in reversed(entries) if entry.event in ("segment", "segment_end")), None)
    how = "was never started" if ended is None else (ended.detail or "was killed")
    if identity is not None and identity.finished:
        how = "finished"
    parts = [f"not running ({how})", f"step {run.steps[-1].step}" if run.steps else "no step yet"]
    if run.steps:
        parts.append(f"reward {run.steps[-1].reward_mean:.2f}")
    if run.checkpoints:
        parts.append(f"checkpoint of step {run.checkpoints[-1]}")
    parts += [f"{result.suite} {result.accuracy:.1%} at step {result.step}" for result in run.evaluations[-1:]]
    return "  ".join(parts)
