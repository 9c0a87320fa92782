"""When certificates are renewed, and the states that a job's CA goes through. Times are unix seconds.

A CA is renewed at two thirds of its life in two steps, so that no pod meets a leaf whose CA it does not trust yet:

    current                      the one CA: signs and is trusted
    current + next               both are trusted, `current` signs; this reaches every pod's files
    current (was next) + previous    the new one signs; leaves of the old one are trusted until they have ended
"""

import dataclasses

from rljob_operator.pki import certificates
from rljob_operator.pki.certificates import Pair

DAY_S = 86_400.0
LEAF_S, AUTHORITY_S = 7 * DAY_S, 90 * DAY_S
RENEW_AT = 2 / 3
# A kubelet brings a changed Secret into a pod within minutes; an operator that was away needs no more.
SPREAD_S = DAY_S
# How long the previous CA is trusted after that: twice what its last leaves live.
KEEP_S = 2 * LEAF_S


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Authorities:
    """The CAs of a job. At most one of `upcoming` and `previous` is there; of the previous only the certificate."""

    current: Pair
    upcoming: Pair | None = None
    previous: bytes = b""

    @property
    def bundle(self) -> bytes:
        """Return every trusted CA, PEM, the signing one first."""
        others = (self.upcoming.certificate if self.upcoming else b"", self.previous)
        return b"".join([self.current.certificate, *filter(None, others)])


def renewed(authorities: Authorities | None, *, name: str, now: float) -> Authorities:
    """Return the CAs as they should be at `now`; the same object if nothing is due.

    A CA that is missing, unreadable or has ended is replaced at once: nothing it signed is good any more.
    """
    if authorities is None:
        return Authorities(_fresh(name, now))
    if authorities.upcoming is not None and (
        now >= _start(authorities.upcoming) + SPREAD_S or not _is_live(authorities.current.certificate, now)
    ):
        authorities = Authorities(authorities.upcoming, previous=authorities.current.certificate)
    if not _is_live(authorities.current.certificate, now):
        return Authorities(_fresh(name, now))
    if authorities.previous and now >= _start(authorities.current) + SPREAD_S + KEEP_S:
        authorities = dataclasses.replace(authorities, previous=b"")
    if authorities.upcoming is None and now >= due_at(authorities.current.certificate):
        return dataclasses.replace(authorities, upcoming=_fresh(name, now), previous=b"")
    return authorities


def due_at(certificate: bytes) -> float:
    """Return when a certificate is to be renewed; 0 if it cannot be read."""
    period = certificates.validity(certificate)
    return 0.0 if period is None else period.start + RENEW_AT * period.seconds


def ends_at(certificate: bytes) -> float:
    """Return when a certificate ends, unix seconds; 0 if it cannot be read."""
    period = certificates.validity(certificate)
    return 0.0 if period is None else period.end


def next_change(authorities: Authorities) -> float:
    """Return when `renewed` may next return something else."""
    if authorities.upcoming is not None:
        return _start(authorities.upcoming) + SPREAD_S
    ends = _start(authorities.current) + SPREAD_S + KEEP_S if authorities.previous else float("inf")
    return min(ends, due_at(authorities.current.certificate))


def leaf_is_good(
    leaf: Pair | None, authorities: Authorities, *, identity: str, hosts: tuple[str, ...], now: float
) -> bool:
    """Return whether a leaf may stay: readable, not due, for these names, and of a CA that is trusted."""
    if leaf is None or now >= due_at(leaf.certificate):
        return False
    trusted = (authorities.current.certificate, authorities.previous)
    return any(certificates.is_issued_by(leaf.certificate, authority) for authority in trusted if authority) and (
        certificates.names_of(leaf.certificate) == (identity, hosts)
    )


def _fresh(name: str, now: float) -> Pair:
    # Two CAs of one job differ in their names, so that a chain leads to one of them only.
    return certificates.make_authority(f"{name}-{int(now)}", now=now, lifetime_s=AUTHORITY_S)


def _start(pair: Pair) -> float:
    period = certificates.validity(pair.certificate)
    return 0.0 if period is None else period.start


def _is_live(certificate: bytes, now: float) -> bool:
    period = certificates.validity(certificate)
    return period is not None and now < period.end
