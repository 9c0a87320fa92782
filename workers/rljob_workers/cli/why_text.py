"""The account that `rljob why` gives, as JSON values and as text. Pure; who gathers it: `why.py`, `cluster.py`."""

import dataclasses
from collections.abc import Iterator, Sequence

from rljob_api import types, waiting
from rljob_workers.cli import log_text, stall_hints
from rljob_workers.local import log_lines, progress, terminal


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Down:
    """A process or pod that does not run: how that came, and the end of its log."""

    name: str
    sentence: str
    last_lines: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Why a run is where it is.

    headline: how it stands, in words. idle_s: seconds since the last progress, None if unknown; stalled_after_s: from
    when on that is a stall. links: who waits for whom. down: what does not run and should.
    diagnosis: who holds it up, None if nobody does. events: the last, oldest first.
    """

    job: str
    headline: str
    running: bool
    idle_s: float | None = None
    stalled_after_s: float | None = None
    links: Sequence[types.Waiting] = ()
    down: Sequence[Down] = ()
    diagnosis: waiting.Diagnosis | None = None
    events: Sequence[log_lines.Line] = ()

    @property
    def stalled(self) -> bool:
        """Return whether nothing has moved for too long."""
        return self.idle_s is not None and self.stalled_after_s is not None and self.idle_s >= self.stalled_after_s


def as_json(account: Account) -> dict[str, object]:
    """Return the account as JSON values; times are unix seconds, spans seconds."""
    found = account.diagnosis
    return {
        "job": account.job,
        "headline": account.headline,
        "running": account.running,
        "idle_s": account.idle_s,
        "stalled_after_s": account.stalled_after_s,
        "stalled": account.stalled,
        "chain": [dataclasses.asdict(link) for link in account.links],
        "down": [dataclasses.asdict(one) for one in account.down],
        "diagnosis": None if found is None else {**dataclasses.asdict(found), "hint": stall_hints.HINTS[found.reason]},
        "events": [log_text.as_json(line) for line in account.events],
    }


def lines(account: Account, now: float) -> Iterator[str]:
    """Yield the lines of the account."""
    yield terminal.line(f"{account.job}: {account.headline}{_idle(account)}")
    if account.down:
        yield "not running"
        for one in account.down:
            yield f"  {terminal.line(one.sentence)}"
            yield from (f"    | {terminal.line(last)}" for last in one.last_lines)
    if account.links:
        yield "who waits for whom"
        yield from (f"  {terminal.line(waiting.sentence(link, now))}" for link in account.links)
    if account.diagnosis is not None:
        found = account.diagnosis
        yield terminal.line(f"held up by {found.pod or found.role}: {found.reason}")
        if not account.links and found.message:
            yield from (f"  {terminal.line(one)}" for one in found.message.split("; "))
        yield f"  {stall_hints.HINTS[found.reason]}"
    elif account.running and not account.down:
        yield "nobody holds it up" if account.links else "nobody waits"
    if account.events:
        yield "last events (UTC)"
        yield from (f"  {one}" for line in account.events for one in log_text.as_text(line))


def _idle(account: Account) -> str:
    if account.idle_s is None:
        return ""
    moved = f"; last progress {progress.duration(account.idle_s)} ago"
    if account.stalled_after_s is None:
        return moved
    after = progress.duration(account.stalled_after_s)
    return f"{moved}: stalled, the limit is {after}" if account.stalled else f"{moved} (stalled after {after})"
