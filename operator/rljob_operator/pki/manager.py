"""Keeps the certificates of jobs with `security.tls: Operator`: before their pods are made, and while they run.

What is due is decided in `pki`; here Secrets are read, written and forgotten. Of a job, the CAs are kept in memory, so
that its coordinator can be asked with a certificate of the operator's own.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence, Set

from rljob_api import enums, errors
from rljob_api.manifest.job import RLJob
from rljob_operator.kube import projection
from rljob_operator.kube.client import Client
from rljob_operator.kube.kinds import Kind
from rljob_operator.model import ref_of
from rljob_operator.pki import rotation, secrets
from rljob_operator.pki.rotation import Authorities

SECRET = Kind("Secret", "", "v1", "secrets")
# Where nothing is due, Secrets are read again this often: someone may have deleted one.
LOOK_EVERY_S = 1800.0


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """What the operator shows a coordinator and what it trusts, PEM. `ends`: unix seconds."""

    bundle: bytes
    certificate: bytes
    key: bytes
    ends: float


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class _JobCertificates:
    job: RLJob
    authorities: Authorities
    again_at: float
    ends: Mapping[enums.Role, float]


class CertificateManager:
    """One for all jobs. `clock` gives unix seconds."""

    def __init__(self, client: Client, *, trust_domain: str, clock: Callable[[], float]) -> None:
        """Know nothing yet: the Secrets are the record."""
        self._client, self._trust_domain, self._clock = client, trust_domain, clock
        # None: a job in plain text.
        self._certificates: dict[str, _JobCertificates | None] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def ensure(self, job: RLJob) -> None:
        """Make a job's Secrets what they should be; no request is sent while nothing is due.

        Raises ApiError, and ClusterError for a Secret of that name which is not the job's.
        """
        uid, now = job.metadata.uid, self._clock()
        if job.spec.security.tls != "Operator":
            self._certificates[uid] = None
            return
        async with self._locks.setdefault(uid, asyncio.Lock()):
            certificates = self._certificates.get(uid)
            # Looked at under the lock: another pass may have written them while this one waited for it.
            if certificates is not None and now < certificates.again_at:
                return
            written = await self._written(job, now)
            again_at = min(written.again_at, now + LOOK_EVERY_S)
            self._certificates[uid] = _JobCertificates(job, written.authorities, again_at, written.ends)

    async def _written(self, job: RLJob, now: float) -> secrets.Secrets:
        """Write what is due and return it. A CA is read again after it was written: leaves are of the one that was
        kept, also where another operator wrote its own at the same time.
        """
        namespace, existing = job.metadata.namespace, await self._read(job, secrets.secret_names(job))
        due = secrets.secrets(job, existing, trust_domain=self._trust_domain, now=now)
        for manifest in due.changed:
            name = ref_of(manifest).name
            await self._client.apply(SECRET, namespace, manifest)
            if name == secrets.authority_name(job):
                existing |= await self._read(job, (name,))
                after_authority = secrets.secrets(job, existing, trust_domain=self._trust_domain, now=now)
                for leaf in after_authority.changed:
                    await self._client.apply(SECRET, namespace, leaf)
                return after_authority
        return due

    async def renew(self) -> None:
        """Look after every job that is known here. Raises what `ensure` raises, after all were tried."""
        failure: errors.ClusterError | None = None
        for entry in list(filter(None, self._certificates.values())):
            try:
                await self.ensure(entry.job)
            except errors.ClusterError as error:
                failure = error
        if failure is not None:
            raise failure

    def keep_only(self, uids: Set[str]) -> None:
        """Let go of jobs that are gone or have no pods for now: their certificates are not renewed."""
        for uid in self._certificates.keys() - uids:
            del self._certificates[uid]
            # Anyone who waits for it holds it; the next one finds the Secrets that were written.
            self._locks.pop(uid, None)

    def is_provisioned(self, uid: str) -> bool:
        """Return whether a job's certificates were provisioned, if it needs any."""
        return uid in self._certificates

    def ends(self, uid: str) -> Mapping[enums.Role, float]:
        """Return when the certificate of each role ends, unix seconds; nothing for a job in plain text."""
        entry = self._certificates.get(uid)
        return {} if entry is None else entry.ends

    def credentials(self, uid: str) -> Credentials | None:
        """Return a fresh certificate for asking a job's coordinator; None for a job in plain text."""
        entry = self._certificates.get(uid)
        if entry is None:
            return None
        now = self._clock()
        leaf = secrets.operator_leaf(entry.job, entry.authorities, trust_domain=self._trust_domain, now=now)
        ends = now + secrets.OPERATOR_S
        return Credentials(entry.authorities.bundle, leaf.certificate, leaf.key, ends)

    async def _read(self, job: RLJob, names: Sequence[str]) -> dict[str, Mapping[str, str]]:
        responses = await asyncio.gather(*(self._client.get(SECRET, job.metadata.namespace, name) for name in names))
        secrets_by_name: dict[str, Mapping[str, str]] = {}
        for name, secret in zip(names, responses, strict=True):
            if secret is None:
                continue
            if projection.controller_of(secret["metadata"]) != job.metadata.uid:
                raise errors.ClusterError(f"Secret {name} exists and is not this job's: delete it, or rename the job")
            secrets_by_name[name] = secret.get("data") or {}
        return secrets_by_name


def renewal_due(credentials: Credentials, now: float) -> bool:
    """Return whether a connection should be opened again with a fresh certificate."""
    return now > credentials.ends - secrets.OPERATOR_S * (1 - rotation.RENEW_AT)
