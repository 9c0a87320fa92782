"""The last words of `rljob run`: what came out, what failed, how to continue. Pure: facts in, text out."""

import dataclasses
import time
from collections.abc import Sequence

from rljob_workers.local.run import progress, runner
from rljob_workers.local.rundir import history

_FIRST_STEPS, _LAST_STEPS = 3, 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where the results lie."""

    report: str
    summary: str


def finished_text(run: history.Run, *, wall_s: float, files: Files) -> str:
    """Return the before/after table and where the report lies."""
    rows = [("", "before", "after"), *_reward_row(run), *_evaluation_rows(run)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    table = [f"  {name:<{widths[0]}}  {a:>{widths[1]}}  {b:>{widths[2]}}" for name, a, b in rows]
    head = f"finished {len(run.steps)} steps in {progress.duration(wall_s)}"
    return "\n".join([head, "", *table, "", f"report:  {files.report}", f"summary: {files.summary}"])


def _reward_row(run: history.Run) -> list[tuple[str, str, str]]:
    rewards = run.rewards
    if not rewards:
        return []
    first, last = rewards[:_FIRST_STEPS], rewards[-_LAST_STEPS:]
    name = f"mean reward (first {len(first)} steps, last {len(last)})"
    return [(name, f"{sum(first) / len(first):.3f}", f"{sum(last) / len(last):.3f}")]


def _evaluation_rows(run: history.Run) -> list[tuple[str, str, str]]:
    rows = []
    for suite in sorted({result.suite for result in run.evaluations}):
        results = [result for result in run.evaluations if result.suite == suite]
        before, after = results[0], results[-1]
        name = f"accuracy on {suite} ({after.n} held-out prompts, step {before.step} and {after.step})"
        rows.append((name, f"{before.accuracy:.1%}", f"{after.accuracy:.1%}" if after is not before else "-"))
    return rows


def stopped_text(outcome: runner.Outcome, *, command: str) -> str:
    """Return where the run is and the command that resumes it."""
    status = outcome.status
    if status is None or status.checkpoint_step == 0:
        at = "before its first checkpoint; nothing is lost that was not yet trained"
        if status is not None and status.step > 0:
            at = f"at step {status.step} of {status.max_steps}, without a checkpoint: it will restart at step 1"
    else:
        at = f"at step {status.step} of {status.max_steps}; the last checkpoint is of step {status.checkpoint_step}"
    return f"stopped {at}.\nTo resume: {command}"


def failed_text(outcome: runner.Outcome, *, logs: str, command: str) -> str:
    """Return one paragraph: what failed, since when, the culprit's last words, where the logs are."""
    status = outcome.status
    at = (
        "before the first step"
        if status is None or status.step == 0
        else f"after step {status.step} of {status.max_steps}"
    )
    since = ""
    if outcome.failing_since is not None:
        since = f" It has been failing since {_clock_time(outcome.failing_since)}."
    parts = [f"failed {at} ({outcome.reason}): {outcome.because}.{since}"]
    if outcome.culprit:
        parts.append(f"Last lines of {outcome.culprit}:\n{_indented(outcome.last_lines)}")
    parts.append(f"Logs: {logs}")
    parts.append(f"After fixing the cause, the same command resumes from the last checkpoint: {command}")
    return "\n".join(parts)


def _clock_time(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def _indented(lines: Sequence[str]) -> str:
    return "\n".join(f"    {line[:400]}" for line in lines) or "    (it wrote no log)"
