"""The operator's parts and its loops, wired; nothing here decides about a job.

    watch events --> cache --> job key --> queue --> reconcile: observe, plan, act --> API server
    lists every 5 minutes --^      ^                     |
    coordinators' streams ---------'                     '--> answers go into the cache
Every operator watches all jobs; it reconciles, listens to coordinators and renews certificates in the shards that it
leads.
A loop that dies ends the process: Kubernetes starts it again, and a start is safe at any time.
"""

import asyncio
import functools
import logging
import random
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from rljob_api import cluster_placement, enums, errors
from rljob_api.manifest.status import JobStatus
from rljob_api.validation import crd
from rljob_operator.clock import SystemClock
from rljob_operator.coordinators import Streams, opened
from rljob_operator.kube import discovery, kinds
from rljob_operator.kube.cache import Cache, key_of, split_key
from rljob_operator.kube.client import ApiError, Client, NotLeadingError
from rljob_operator.kube.discovery import ServedApis, discover
from rljob_operator.kube.election import Election
from rljob_operator.kube.fence import Fence, open_fence
from rljob_operator.kube.kinds import Kind
from rljob_operator.kube.resync import Lister
from rljob_operator.kube.runtimes import Runtimes
from rljob_operator.kube.scope import Scope
from rljob_operator.listening import Listening
from rljob_operator.model import Apply, Child, DesiredObjects, Observed, Plan, Ref, Refusal, RuntimeUse
from rljob_operator.pki.manager import CertificateManager
from rljob_operator.policies import runtimes
from rljob_operator.reconcile import events, queue
from rljob_operator.reconcile.cluster import LiveCluster, OutOfDateError
from rljob_operator.reconcile.desired import UnchangedCache, desired_objects
from rljob_operator.reconcile.queue import Dispatcher, WorkQueue
from rljob_operator.reconcile.reconciler import Reconciler, Request
from rljob_operator.reports import Reports
from rljob_operator.settings import Settings
from rljob_operator.telemetry.durations import SpecChanges
from rljob_operator.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

COMPARE_EVERY_S = 300.0
# Where a namespace is closed, someone may be about to open it.
_LOOK_SOONER_S = 30.0
FINISH_WITHIN_S = 10.0
_TRY_AGAIN_S = 2.0
_UNREACHABLE_S, _STUCK_S = 60.0, 300.0
_OUT_OF_DATE_S = 2.0
_PING_EVERY_S = 20.0
# Events that wait to be posted, and how long those that are left may take at the end.
_MOST_EVENTS, _LAST_EVENTS_S = 5_000, 2.0
# Two lists that show the same change untold.
_FROZEN_S = 2 * COMPARE_EVERY_S


def coordinator_address(namespace: str, name: str) -> str:
    return f"{name}-{enums.Role.COORDINATOR}.{namespace}.svc:{cluster_placement.CONTROL_PORT}"


async def _at_once(requests: Sequence[Request]) -> Sequence[Refusal | BaseException | None]:
    """Send all and wait for all: what was sent is never given up for the sake of what failed."""
    return await asyncio.gather(*(request() for request in requests), return_exceptions=True)


class Operator:
    """All parts of one operator. `address_of` gives a coordinator's address by namespace and name of the job.

    fence: the client's own, opened by the election; without one no other operator is expected. identity: its name among
    operators.
    """

    def __init__(
        self,
        settings: Settings,
        client: Client,
        *,
        address_of: Callable[[str, str], str] = coordinator_address,
        metrics: Metrics | None = None,
        fence: Fence | None = None,
        identity: str = "",
    ) -> None:
        """Nothing runs before `start`."""
        clock, rng = SystemClock(), random.Random()
        self.metrics = metrics or Metrics()
        self._event_limiter, self._changes = events.EventRateLimiter(), SpecChanges()
        self._events = asyncio.Queue[tuple[str, dict[str, object]]](maxsize=_MOST_EVENTS)
        self._settings, self._client, self._clock = settings, client, clock
        self._scope = Scope(settings.watch_namespace_selector)
        self.cache, self._runtimes = Cache(self._scope.includes), Runtimes(self._scope.includes)
        self._namespace_came = asyncio.Event()
        self._runtimes_changed = asyncio.Event()
        self._lister = Lister(
            client=client, cache=self.cache, namespaces=settings.watch_namespaces or (None,), scope=self._scope
        )
        self._queue = WorkQueue(clock=clock, rng=rng, concurrency=settings.concurrency)
        self._certifier = CertificateManager(client, trust_domain=settings.jobs.trust_domain, clock=clock.now)
        self._reports = Reports(enqueue=self._enqueue, now=clock.now, monotonic=clock.monotonic)
        self._streams = Streams(
            self._reports,
            functools.partial(opened, credentials_of=self._certifier.credentials, now=clock.now),
            now=clock.now,
            rng=rng,
            on_report=self.metrics.reported,
        )
        self._live = LiveCluster(
            client=client,
            cache=self.cache,
            lister=self._lister,
            coordinators=self._reports,
            clock=clock.now,
            on_status=self._status_written,
            on_applied=self._applied,
            certify=self._certifier.ensure,
            use_runtime=self._use_runtime,
            default_queue=settings.jobs.default_queue,
        )
        self.listening = Listening(
            self._streams,
            self._reports,
            self._certifier,
            cache=self.cache,
            leads=self._looks_after,
            job_of=self._live.job,
            address_of=address_of,
        )
        self._unchanged = UnchangedCache(self._desired)
        self._reconciler = Reconciler(
            self._live,
            desired=self._unchanged.desired,
            clock=clock,
            on_planned=self._planned,
            at_once=_at_once,
            gives_way=self._queue.gives_way,
        )
        self._dispatcher = Dispatcher(self._queue, reconcile=self._reconcile, on_error=self._failed)
        self._loops: list[asyncio.Task[None]] = []
        self._fence = open_fence() if fence is None else fence
        self._election: asyncio.Task[None] | None = None
        self._candidate = Election(
            client,
            self._fence,
            settings.leader_election,
            identity=identity,
            clock=clock,
            is_ready=lambda: not self.ready(),
            on_gained=self._gained,
            on_lost=self._lost,
        )
        self._filled = False
        self._definition_problem = ""
        self._served = ServedApis()
        self.stopped = asyncio.Event()
        self._declare_gauges()

    def _declare_gauges(self) -> None:
        gauge = self.metrics.gauge
        gauge("rljob_operator_queue_depth", lambda: float(len(self._queue)))
        gauge("rljob_operator_queue_oldest_seconds", self._queue.oldest_s)
        gauge("rljob_operator_status_streams", lambda: float(self._streams.num_open))
        gauge("rljob_operator_report_age_seconds", self._reports.age_s)
        gauge("rljob_operator_refused_lists", lambda: float(len(self._lister.refused)))
        for shard in range(self._fence.shards):
            gauge("rljob_operator_leader", functools.partial(self._fence.leads, shard), shard=str(shard))
        for kind in kinds.CACHED_KINDS:
            gauge("rljob_operator_cache_objects", functools.partial(self.cache.number, kind), kind=kind)
            gauge("rljob_operator_watch_lag_seconds", functools.partial(self._lag_s, kind), kind=kind)

    def _lag_s(self, kind: str = "") -> float:
        return self._lister.lag.seconds(now=self._clock.monotonic(), kind=kind)

    async def _reconcile(self, key: str) -> float | None:
        began = self._clock.monotonic()
        if self._lister.closed(split_key(key)[0]):
            return None  # The next list says when it is open again.
        if not self._fence.allows(split_key(key)[0]):
            # A renewal may still come: then no shard is gained, and no one else would make the key due.
            return _TRY_AGAIN_S if self._looks_after(key) else None
        try:
            again_s = await self._reconciler.reconcile(key)
        except Exception as error:
            result = "requeue" if isinstance(error, OutOfDateError) else "error"
            self.metrics.reconciled(result, self._clock.monotonic() - began)
            raise
        self.metrics.reconciled("ok", self._clock.monotonic() - began)
        if self.cache.job(key) is None:
            self.metrics.forget(key)
            self._changes.forget(key)
        return again_s

    async def _status_written(self, observed: Observed, status: JobStatus) -> None:
        self.metrics.wrote(observed.job, observed.status, status)
        metadata, now = observed.job.metadata, self._clock.now()
        for draft in events.event_drafts(observed.status, status):
            if not self._event_limiter.allow(metadata.uid, draft, now=self._clock.monotonic()):
                continue
            logger.info("%s/%s: %s", metadata.namespace, metadata.name, draft.note)
            if self._events.full():
                logger.warning("an Event is not posted: %d wait", self._events.qsize())
                continue
            body = events.body(observed.job, draft, instance=socket.gethostname(), now=now)
            self._events.put_nowait((metadata.namespace, body))

    async def _post_events(self) -> None:
        """Post Events one after another: no pass waits for them, and they take the place of no other request."""
        while True:
            await self._post_event(*await self._events.get())

    async def _post_event(self, namespace: str, body: dict[str, object]) -> None:
        try:
            await self._client.post_event(namespace, body)
        except ApiError as error:
            logger.warning("could not post an Event: %s", error)

    async def _post_last_events(self) -> None:
        try:
            async with asyncio.timeout(_LAST_EVENTS_S):
                while not self._events.empty():
                    await self._post_event(*self._events.get_nowait())
        except TimeoutError:
            logger.warning("%d Events were not posted before the end", self._events.qsize())

    def _applied(self, key: str, kind: str) -> None:
        seconds = self._changes.applied(key, kind, now=self._clock.monotonic())
        if seconds is not None:
            self.metrics.applied(kind, seconds)

    def _planned(self, observed: Observed, planned: Plan, desired: DesiredObjects) -> None:
        key = key_of(observed.job.metadata.namespace, observed.job.metadata.name)
        self.metrics.saw(key, observed, certificate_ends=self._certifier.ends(observed.job.metadata.uid))
        self._unchanged.planned(observed, planned, desired)
        self._live.planned(observed, planned)
        applies = any(isinstance(action, Apply) for action in planned.actions)
        self._changes.planned(key, observed.job.metadata.generation, applies=applies)

    def _desired(self, observed: Observed) -> DesiredObjects:
        return desired_objects(observed, self._settings.jobs, self._served.groups)

    def _looks_after(self, key: str) -> bool:
        """Return whether a job is of a shard that was gained and not lost since, though its lead may lapse for a while
        where a renewal is late.
        """
        shard = self._fence.shard_of(split_key(key)[0])
        return self._fence.leads(shard) or self._candidate.holds(shard)

    def _use_runtime(
        self, document: dict[str, Any], children: Mapping[Ref, Child]
    ) -> tuple[dict[str, Any], RuntimeUse]:
        sees_cluster = None in self._lister.namespaces
        default = self._settings.jobs.default_runtime
        return runtimes.use(document, children, self._runtimes.find, default=default, sees_cluster=sees_cluster)

    def _on_runtime(self, deleted: bool, raw: Mapping[str, Any]) -> None:
        """Take a runtime: any job of its namespace, or of the cluster, may have waited for it."""
        changed = self._runtimes.remove(raw) if deleted else self._runtimes.put(raw)
        self._runtimes_changed.set()
        namespace = raw["metadata"].get("namespace")
        for key in self.cache.keys if changed else ():
            if namespace in (None, split_key(key)[0]):
                self._dispatcher.enqueue(key)

    async def _report_runtimes(self) -> None:
        while True:
            await self._runtimes_changed.wait()
            self._runtimes_changed.clear()
            try:
                await self._runtimes.report(self._client, now=self._clock.now())
            except errors.ClusterError as error:
                logger.warning("could not write the status of a runtime: %s", error)
                await asyncio.sleep(_LOOK_SOONER_S)
                self._runtimes_changed.set()

    def _enqueue(self, key: str, *, behind_s: float = 0.0, may_give_way: bool = False) -> None:
        # Of a shard that is gained later, all keys become due then.
        if self._looks_after(key):
            self._dispatcher.enqueue(key, behind_s=behind_s, may_give_way=may_give_way)

    def _gained(self, shard: int) -> None:
        """Begin to look after a shard: compare all of its jobs and runtimes once, whatever was found when it was led
        before.
        """
        self._unchanged.forget_all()
        self._runtimes_changed.set()
        for key, behind_s in queue.startup_order(self.cache):
            if self._is_in(shard, key):
                self._dispatcher.enqueue(key, behind_s=behind_s, may_give_way=True)

    def _is_in(self, shard: int, key: str) -> bool:
        return self._fence.shard_of(split_key(key)[0]) == shard

    def _lost(self, shard: int) -> None:
        """Leave a shard to another operator, which shows the metrics of its jobs from now on."""
        keys = {key for key in self.cache.keys if self._is_in(shard, key)}
        self._dispatcher.drop(keys)
        for key in keys:
            self.metrics.forget(key)

    def on_object(self, kind: Kind, deleted: bool, raw: Mapping[str, Any]) -> None:
        if kind in kinds.RUNTIMES:
            self._on_runtime(deleted, raw)
            return
        if kind is kinds.NAMESPACE:
            self._on_namespace(raw["metadata"]["name"], gone=deleted)
            return
        self._lister.lag.clear(raw["metadata"]["uid"])
        key = self.cache.remove(kind, raw) if deleted else self.cache.put(kind, raw)
        if key is not None:
            if kind is kinds.RLJOB:
                generation = int(raw["metadata"].get("generation", 0))
                self._changes.saw(key, generation, now=self._clock.monotonic())
            self._enqueue(key)
        if deleted and kind is kinds.RLJOB:
            self._forget(raw["metadata"]["uid"])

    def _forget(self, uid: str) -> None:
        self._live.forget(uid)
        self._unchanged.forget(uid)
        self._reconciler.forget(uid)

    def _on_namespace(self, name: str, *, gone: bool) -> None:
        """Take a namespace into the scope, or let go of it and of its jobs, which run on."""
        if not gone and self._scope.add(name):
            self._namespace_came.set()
        elif gone and self._scope.remove(name):
            jobs = self._lister.close(name)
            self._runtimes.drop(name)
            self._dispatcher.drop(jobs.keys())
            for key, uid in jobs.items():
                self._forget(uid)
                self.metrics.forget(key)

    async def _compare_namespaces(self) -> None:
        """Find out which namespaces match now: a watch that broke reports nothing of those that ceased to."""
        came, gone = await self._scope.differences(self._client)
        for name in came | gone:
            self._on_namespace(name, gone=name in gone)

    async def _open_namespaces(self) -> None:
        while True:
            await self._namespace_came.wait()
            self._namespace_came.clear()
            for name in sorted(self._scope.opening):
                try:
                    if await self._runtimes.compare(self._client, (name,)):
                        self._runtimes_changed.set()
                    await self._lister.open(name)
                except errors.ClusterError as error:
                    logger.warning("could not list namespace %s: %s", name, error)
                    await asyncio.sleep(_TRY_AGAIN_S)
                    self._namespace_came.set()
                for key in self.cache.keys:
                    if split_key(key)[0] == name:
                        self._enqueue(key)

    async def start(self) -> None:
        """List everything, then begin to reconcile; waits for an API server that does not answer."""
        if self._settings.leader_election.enabled:
            # From now on the time of another's Lease runs; none is taken before the lists are complete.
            self._election = self._spawned("elect", self._candidate.run())
        while not self._filled:
            try:
                await self._require_definition()
                # What is served decides which kinds are listed.
                await self._look_for_apis()
                await self._compare_namespaces()
                await self._runtimes.compare(self._client, self._lister.namespaces)
                self._runtimes_changed.set()
                await self._lister.fill()
                self._filled = True
            except ApiError as error:
                logger.warning("could not list the cluster: %s", error)
                await asyncio.sleep(_TRY_AGAIN_S)
        for key, behind_s in queue.startup_order(self.cache):
            self._enqueue(key, behind_s=behind_s, may_give_way=True)
        logger.info("started with %d jobs and %d objects", len(self.cache.keys), len(self.cache))
        self._spawn("reconcile", self._dispatcher.run())
        self._spawn("learn", self.listening.learn())
        self._spawn("listen", self.listening.listen())
        self._spawn("compare", self._compare())
        self._spawn("open namespaces", self._open_namespaces())
        self._spawn("renew", self.listening.renew())
        self._spawn("post events", self._post_events())
        self._spawn("report runtimes", self._report_runtimes())
        self._spawn("ping", self._ping())

    @property
    def also_watched(self) -> tuple[Kind, ...]:
        return tuple(kind for kind in self._served.optional if kind in kinds.ALSO_WATCHED)

    async def streams(self) -> bool:
        try:
            return await self._client.streams(kinds.RLJOB, self._lister.namespaces[0])
        except ApiError as error:
            logger.warning("could not find out whether lists can be streamed: %s", error)
            return False

    async def _require_definition(self) -> None:
        """Wait until the RLJob that is served has every field that a status may have."""
        schema = crd.root_schema()
        while problem := discovery.schema_problem(await self._client.schema(kinds.RLJOB), schema):
            if problem != self._definition_problem:
                logger.error("%s", problem)
            self._definition_problem = problem
            await asyncio.sleep(_TRY_AGAIN_S)
        self._definition_problem = ""
        self.metrics.definition_matches(True)

    async def _look_for_apis(self) -> None:
        served = await discover(
            self._client,
            self._settings.integrations,
            namespaces=self._lister.namespaces,
            gang=self._settings.jobs.gang_scheduler,
        )
        if served == self._served:
            return
        if self._filled and kinds.ALSO_WATCHED & set(served.optional) - set(self._served.optional):
            # Kopf is told what to watch at its start.
            logger.warning("an API that has to be watched is served now: starting again")
            self.stopped.set()
        self._served, self._lister.children = served, (*kinds.CHILDREN, *served.optional)
        # What a job was refused for, or did without, may be there now.
        self._unchanged.forget_all()
        self._enqueue_all()

    def _enqueue_all(self) -> None:
        for key in self.cache.keys:
            self._enqueue(key)

    def _spawn(self, name: str, loop: Coroutine[Any, Any, None]) -> None:
        self._loops.append(self._spawned(name, loop))

    def _spawned(self, name: str, loop: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(loop, name=name)
        task.add_done_callback(self._loop_ended)
        return task

    def _loop_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            logger.error("loop %s ended", task.get_name(), exc_info=task.exception())
            self.stopped.set()

    async def finish(self) -> None:
        """Take no key any more, let what runs finish, and leave the lead to others; once is enough."""
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self._streams.close()
        await self._dispatcher.finish(within_s=FINISH_WITHIN_S)
        await self._post_last_events()
        if self._election is not None:
            self._election.cancel()
            await asyncio.gather(self._election, return_exceptions=True)
            await self._candidate.give_back()
            self._election = None

    async def stop(self) -> None:
        await self.finish()
        await self._client.close()

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(_PING_EVERY_S)
            await self.hear()

    async def hear(self) -> None:
        """Ask the API server for a sign of life if there was none lately: an idle operator asks for nothing else."""
        if self._clock.monotonic() - self._client.answered_at < _PING_EVERY_S:
            return
        try:
            await self._client.ping()
        except errors.ClusterError as error:
            logger.warning("the API server does not answer: %s", error)

    async def _compare(self) -> None:
        while True:
            await asyncio.sleep(min(COMPARE_EVERY_S, _LOOK_SOONER_S) if self._lister.refused else COMPARE_EVERY_S)
            try:
                await self._look_for_apis()
            except errors.ClusterError as error:
                logger.warning("could not find out which APIs are served: %s", error)
            try:
                await self._compare_namespaces()
                if await self._runtimes.compare(self._client, self._lister.namespaces):
                    self._enqueue_all()
                for key in await self._lister.compare():
                    self._enqueue(key)
            except errors.ClusterError as error:
                logger.warning("could not compare with the cluster: %s", error)

    def _failed(self, key: str, error: Exception) -> float | None:
        if isinstance(error, OutOfDateError):
            # The pass got as far as the change; the next one gets further.
            logger.debug("%s: %s", key, error)
            return _OUT_OF_DATE_S
        if isinstance(error, NotLeadingError):
            logger.info("%s: %s", key, error)
            return None
        self.metrics.failed(error)
        if isinstance(error, ApiError):
            logger.warning("%s: %s", key, error)
        else:
            logger.error("%s: reconcile failed", key, exc_info=error)
        return None

    def alive(self) -> str:
        """Return why the process should be restarted; empty if it need not."""
        if self.stopped.is_set():
            return "a loop of the operator ended"
        if self._lag_s() > _FROZEN_S:
            return "a watch has stopped: lists show changes that it did not deliver"
        idle = self._queue.oldest_s() > _STUCK_S and self._queue.has_room
        return "a job waits though nothing else runs" if idle else ""

    def ready(self) -> str:
        """Return what is missing for work; empty if nothing is."""
        if not self._filled:
            return self._definition_problem or "the first lists are not complete"
        if blind := self._lister.blind():
            return blind
        silent = self._clock.monotonic() - self._client.answered_at
        return f"the API server has not answered for {silent:.0f} s" if silent > _UNREACHABLE_S else ""
