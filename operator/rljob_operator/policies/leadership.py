"""Who leads a shard of the namespaces, decided from its Lease. Pure; `kube/election.py` reads and writes Leases.

    not read --> led by another --> expired or given back --> taken --> renewed --> given back, or not renewed in time
Of another's Lease nothing is believed but that it changed, and when that was seen on the own monotonic clock: two
clocks need not agree on the time, only, within lease_seconds / renew_seconds, on how long a second is. A holder's time
runs from before its request was sent, that of others from after the answer was read, so the holder's is over first.
Source: the election of client-go (k8s.io/client-go/tools/leaderelection).
"""

import dataclasses
import hashlib

from rljob_operator.settings import LeaderElection


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A Lease. holder: empty once it was given back. lease_s: what its holder promised to renew it within. version: of
    the API server; empty before it exists. transitions: how often another holder took it.
    """

    holder: str = ""
    lease_s: float = 0.0
    version: str = ""
    transitions: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a candidate knows of a shard. since: when it saw the record first, on its own monotonic clock.

    renewed_at: when it sent the request by which it took or kept the Lease; None where it does not hold it.
    """

    record: Record
    since: float
    renewed_at: float | None = None


def shard_of(namespace: str, shards: int) -> int:
    """Return the shard of a namespace, the same in every process and version. Raises ValueError below one shard."""
    if shards < 1:
        raise ValueError(f"need {shards=} to be at least 1")
    return int.from_bytes(hashlib.sha256(namespace.encode()).digest()[:8], "big") % shards


def after_read(view: View | None, record: Record, *, identity: str, now: float) -> View:
    """Return the view after the Lease was read. now: after the answer."""
    since = view.since if view is not None and view.record == record else now
    renewed_at = view.renewed_at if view is not None and record.holder == identity else None
    return View(record=record, since=since, renewed_at=renewed_at)


def after_write(record: Record, *, sent_at: float, now: float) -> View:
    """Return the view after this candidate wrote the Lease."""
    return View(record=record, since=now, renewed_at=sent_at if record.holder else None)


def write_until(view: View | None, terms: LeaderElection) -> float:
    """Return up to when this candidate may write in the shard; minus infinity where it does not lead."""
    if view is None or view.renewed_at is None:
        return float("-inf")
    return view.renewed_at + terms.renew_seconds


def may_take(view: View, *, identity: str, terms: LeaderElection, now: float, num_led: int = 0) -> bool:
    """Return whether this candidate may write itself into the Lease. num_led: shards that it leads already."""
    return now >= takeable_at(view, identity=identity, terms=terms, num_led=num_led)


def takeable_at(view: View, *, identity: str, terms: LeaderElection, num_led: int = 0) -> float:
    """Return when this candidate may take the Lease if nothing changes, in its own monotonic seconds.

    A process that began again under the same identity need not wait for itself. A free shard goes first to whom leads
    fewer, so that replicas share them; one whose holder is gone waits for no one.
    """
    if view.record.holder == identity:
        return view.since
    if not view.record.holder:
        return view.since + num_led * terms.retry_seconds
    return view.since + view.record.lease_s


def taken(record: Record, *, identity: str, terms: LeaderElection) -> Record:
    """Return the Lease as this candidate writes it to take or to keep it."""
    changes_hands = record.holder != identity and record.version != ""
    return dataclasses.replace(
        record,
        holder=identity,
        lease_s=terms.lease_seconds,
        transitions=record.transitions + changes_hands,
    )


def given_back(record: Record) -> Record:
    """Return the Lease as its holder leaves it, for anyone to take at once."""
    return dataclasses.replace(record, holder="", lease_s=1.0)


def wait_s(view: View | None, *, identity: str, terms: LeaderElection, now: float, num_led: int = 0) -> float:
    """Return the seconds until this candidate looks at the shard again: at each retry, and not later than when its own
    time ends or another's Lease may be taken.
    """
    if view is None:
        return terms.retry_seconds
    if view.renewed_at is not None:
        moment = write_until(view, terms)
    else:
        moment = takeable_at(view, identity=identity, terms=terms, num_led=num_led)
    return min(terms.retry_seconds, moment - now) if moment > now else terms.retry_seconds
