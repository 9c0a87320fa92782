"""Which coordinators are listened to, and the certificates with which: those of the runs under way in led shards."""

import asyncio
import logging
from collections.abc import Callable

import pydantic

from rljob_api import enums, errors
from rljob_api.manifest.job import RLJob
from rljob_operator.coordinators import Streams
from rljob_operator.kube.cache import Cache, split_key
from rljob_operator.kube.projection import JobView
from rljob_operator.pki.manager import CertificateManager
from rljob_operator.reports import Reports, Target

logger = logging.getLogger(__name__)

RENEW_EVERY_S = 60.0
_TICK_S = 1.0
# Jobs whose Secrets are read at the same time after a start.
_LEARNT_AT_ONCE = 16


class Listening:
    """Three loops, each for ever: `learn` and `renew` see to certificates, `listen` to streams."""

    def __init__(
        self,
        streams: Streams,
        reports: Reports,
        certifier: CertificateManager,
        *,
        cache: Cache,
        leads: Callable[[str], bool],
        job_of: Callable[[str], RLJob | None],
        address_of: Callable[[str, str], str],
    ) -> None:
        """leads: whether a job, by its key, is looked after here; job_of: a job with its runtime's values, None without
        one; address_of: of a coordinator, by namespace and name of the job.
        """
        self._streams, self._reports, self._certifier = streams, reports, certifier
        self._cache, self._leads, self._job_of, self._address_of = cache, leads, job_of, address_of

    async def listen(self) -> None:
        while True:
            self._streams.keep(self.targets())
            self._reports.show_next()
            await asyncio.sleep(_TICK_S)

    async def learn(self) -> None:
        """See to the certificates of jobs that ran before this process did; they are not applied to while they run.

        A job's coordinator is listened to as soon as the job is known here, whatever becomes of the others.
        """
        tried = dict[str, int]()
        while True:
            with_pods = {job.uid: key for key in self._cache.keys if (job := self._running(key)) is not None}
            self._certifier.keep_only(with_pods.keys())
            unknown = {uid: key for uid, key in with_pods.items() if not self._certifier.is_provisioned(uid)}
            tried = {uid: tried.get(uid, 0) for uid in unknown}
            # Those first that were tried least: a job whose Secrets no one may read keeps no one waiting.
            now = sorted(unknown, key=lambda uid: tried[uid])[:_LEARNT_AT_ONCE]
            is_first = any(not tried[uid] for uid in now)
            tried |= {uid: tried[uid] + 1 for uid in now}
            await asyncio.gather(*(self.certified(unknown[uid]) for uid in now))
            await asyncio.sleep(0.0 if is_first else _TICK_S)

    async def renew(self) -> None:
        """Renew certificates as they fall due, whatever else cannot be read or written."""
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            try:
                await self._certifier.renew()
            except errors.ClusterError as error:
                logger.warning("could not renew certificates of a job: %s", error)

    def targets(self) -> list[Target]:
        """Return the jobs whose coordinators are listened to now."""
        return [
            Target(
                key=key,
                uid=job.uid,
                address=self._address_of(*split_key(key)) if self._certifier.is_provisioned(job.uid) else "",
            )
            for key in self._cache.keys
            if (job := self._running(key)) is not None
        ]

    async def certified(self, key: str) -> None:
        """See to the certificates of one job, of which a failure is logged."""
        try:
            job = self._job_of(key)
            if job is not None:
                await self._certifier.ensure(job)
        except pydantic.ValidationError:
            return  # The reconcile says so in the job's status.
        except errors.ClusterError as error:
            logger.warning("could not renew the certificates of a job: %s", error)

    def _running(self, key: str) -> JobView | None:
        """Return a job that is looked after here, whose coordinator has a pod and something to report: of a run that is
        over nothing changes any more.
        """
        job = self._cache.job(key) if self._leads(key) else None
        if job is None or job.ended or not self._cache.has_pod(key, job.uid, enums.Role.COORDINATOR):
            return None
        return job
