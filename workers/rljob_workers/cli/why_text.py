"""The account that `rljob why` gives, as JSON values and as text. Pure; `inspect.py`, `cluster_status.py` gather it."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from rljob_api import enums, types, waiting
from rljob_api.conditions import STALLS
from rljob_workers.cli import logs
from rljob_workers.local import terminal
from rljob_workers.local.run import progress
from rljob_workers.local.rundir import log_lines


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoppedProcess:
    """A process or pod that does not run: how that came, and the end of its log."""

    name: str
    sentence: str
    last_lines: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Why a run is where it is.

    headline: its status, in words. idle_s: seconds since the last progress, None if unknown; stalled_after_s: from
    when on that is a stall. links: who waits for whom. down: what does not run and should.
    diagnosis: what blocks it, None if nothing does. events: the last, oldest first.
    storage_problem: why checkpoints do not reach their object store, while the run goes on.
    concerns: what is wrong with how it learns.
    """

    job: str
    headline: str
    running: bool
    idle_s: float | None = None
    stalled_after_s: float | None = None
    links: Sequence[types.Waiting] = ()
    down: Sequence[StoppedProcess] = ()
    diagnosis: waiting.Diagnosis | None = None
    events: Sequence[log_lines.Line] = ()
    storage_problem: str = ""
    concerns: Sequence[types.Concern] = ()

    @property
    def stalled(self) -> bool:
        """Return whether nothing has moved for too long."""
        return self.idle_s is not None and self.stalled_after_s is not None and self.idle_s >= self.stalled_after_s


def as_json(account: Account) -> dict[str, object]:
    """Return the account as JSON values; times are unix seconds, spans seconds."""
    diagnosis = account.diagnosis
    return {
        "job": account.job,
        "headline": account.headline,
        "running": account.running,
        "idle_s": account.idle_s,
        "stalled_after_s": account.stalled_after_s,
        "stalled": account.stalled,
        "storage_problem": account.storage_problem,
        "concerns": [dataclasses.asdict(concern) for concern in account.concerns],
        "chain": [dataclasses.asdict(link) for link in account.links],
        "down": [dataclasses.asdict(process) for process in account.down],
        "diagnosis": None
        if diagnosis is None
        else {**dataclasses.asdict(diagnosis), "hint": STALLS[diagnosis.reason].hint},
        "events": [logs.line_as_json(line) for line in account.events],
    }


def lines(account: Account, now: float) -> Iterator[str]:
    yield terminal.line(f"{account.job}: {account.headline}{_idle(account)}")
    if account.storage_problem:
        yield terminal.line(account.storage_problem)
    for concern in account.concerns:
        yield terminal.line(f"{concern.reason}: {concern.message}")
    if account.down:
        yield "not running"
        for process in account.down:
            yield f"  {terminal.line(process.sentence)}"
            yield from (f"    | {terminal.line(last)}" for last in process.last_lines)
    if account.links:
        yield "who waits for whom"
        yield from (f"  {terminal.line(waiting.sentence(link, now))}" for link in account.links)
    if account.diagnosis is not None:
        diagnosis = account.diagnosis
        yield terminal.line(f"blocked by {diagnosis.pod or diagnosis.role}: {diagnosis.reason}")
        if not account.links and diagnosis.message:
            yield from (f"  {terminal.line(process)}" for process in diagnosis.message.split("; "))
        yield f"  {STALLS[diagnosis.reason].hint}"
    elif account.running and not account.down:
        yield "nothing is blocking" if account.links else "no waits"
    if account.events:
        yield "last events (UTC)"
        yield from (f"  {process}" for line in account.events for process in logs.line_as_text(line))


def _idle(account: Account) -> str:
    if account.idle_s is None:
        return ""
    moved = f"; last progress {progress.duration(account.idle_s)} ago"
    if account.stalled_after_s is None:
        return moved
    after = progress.duration(account.stalled_after_s)
    return f"{moved}: stalled, the limit is {after}" if account.stalled else f"{moved} (stalled after {after})"


_WHY = {
    enums.DropReason.TOO_LONG: "the prompt is longer than maxPromptTokens of its source",
    enums.DropReason.INVALID_RECORD: "the record cannot be graded",
}


def loss_sentences(*, left_out: Mapping[str, int], dump_failures: int, storage_problem: str = "") -> Iterator[str]:
    """Yield a sentence for each loss; none if there is none. left_out: how many groups, by reason."""
    if storage_problem:
        yield storage_problem
    for reason, why in _WHY.items():
        if count := left_out.get(reason, 0):
            yield f"{_counted(count, 'group')} left out, because {why}; the logs of the rollouts name the first"
    if dump_failures:
        yield f"{_counted(dump_failures, 'trajectory dump')} could not be written; the logs of the rollouts say why"


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
