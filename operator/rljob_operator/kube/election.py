"""Keeps a Lease per shard: reads it, takes it where that may be, renews it, gives it back. What may be, and when, is
decided in `policies/leadership.py`; what follows for requests is in `fence.py`.
"""

import asyncio
import datetime
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from rljob_operator.clock import Clock
from rljob_operator.kube import kinds
from rljob_operator.kube.client import ApiError, Client
from rljob_operator.kube.fence import Fence
from rljob_operator.policies import leadership
from rljob_operator.policies.leadership import Record, View
from rljob_operator.settings import LeaderElection

logger = logging.getLogger(__name__)

_CONFLICT = 409
_GIVEN_BACK_TRIES = 3
OnShard = Callable[[int], object]


def lease_name(terms: LeaderElection, shard: int) -> str:
    return f"{terms.name}-shard-{shard}"


class Election:
    """One candidate for all shards. `identity` is no other process's; a successor in the same pod may have it too."""

    def __init__(
        self,
        client: Client,
        fence: Fence,
        terms: LeaderElection,
        *,
        identity: str,
        clock: Clock,
        is_ready: Callable[[], bool],
        on_gained: OnShard,
        on_lost: OnShard,
    ) -> None:
        """is_ready: whether a shard that is taken now would be looked after. on_gained, on_lost: called at a change."""
        self._client, self._fence, self._terms, self._identity = client, fence, terms, identity
        self._clock, self._is_ready, self._on_gained, self._on_lost = clock, is_ready, on_gained, on_lost
        self._views: dict[int, View] = {}
        self._led = set[int]()

    def holds(self, shard: int) -> bool:
        """Return whether a shard was gained and not lost since. Its lead may have lapsed: with a renewal that comes
        late, but before anyone else took the Lease, it goes on.
        """
        return shard in self._led

    async def run(self) -> None:
        """Be a candidate for every shard until cancelled."""
        async with asyncio.TaskGroup() as shards:
            for shard in range(self._fence.shards):
                shards.create_task(self._run(shard), name=f"election of shard {shard}")

    async def _run(self, shard: int) -> None:
        while True:
            wait_s = await self.turn(shard)
            await asyncio.sleep(wait_s)

    async def turn(self, shard: int) -> float:
        """Look at a shard once and do what is due; return the seconds until the next look."""
        try:
            await self._advance(shard)
        except ApiError as error:
            # Lost to another candidate, or not known: the next look says which.
            if error.status != _CONFLICT:
                logger.warning("could not read or write the Lease of shard %d: %s", shard, error)
            elif shard in self._views:
                self._views[shard] = await self._reread(shard)
        self._follow(shard)
        return self._wait_s(shard)

    async def _advance(self, shard: int) -> None:
        view = self._views.get(shard)
        if view is None or view.renewed_at is None:
            view = await self._read(shard)
            if not self._is_ready() or not leadership.may_take(
                view, identity=self._identity, terms=self._terms, now=self._clock.monotonic(), num_led=len(self._led)
            ):
                return
        await self._write(shard, leadership.taken(view.record, identity=self._identity, terms=self._terms))

    async def _reread(self, shard: int) -> View:
        try:
            return await self._read(shard)
        except ApiError as error:
            logger.warning("could not read the Lease of shard %d: %s", shard, error)
            return self._views[shard]

    async def _read(self, shard: int) -> View:
        # A request that hangs must leave time for another one.
        timeout_s = self._terms.renew_seconds / 2
        body = await self._client.read_lease(self._terms.namespace, lease_name(self._terms, shard), timeout_s=timeout_s)
        record = Record() if body is None else record_of(body)
        view = leadership.after_read(
            self._views.get(shard), record, identity=self._identity, now=self._clock.monotonic()
        )
        self._views[shard] = view
        return view

    async def _write(self, shard: int, record: Record) -> None:
        body = lease_body(self._terms, shard, record, now=self._clock.now())
        sent_at = self._clock.monotonic()
        answer = await self._client.write_lease(self._terms.namespace, body, timeout_s=self._terms.renew_seconds / 2)
        now = self._clock.monotonic()
        self._views[shard] = leadership.after_write(record_of(answer), sent_at=sent_at, now=now)

    def _follow(self, shard: int) -> None:
        """Let requests through up to when the shard is led, and report a change."""
        until = leadership.write_until(self._views.get(shard), self._terms)
        self._fence.set(shard, until)
        leads = self._clock.monotonic() < until
        if leads and shard not in self._led:
            self._led.add(shard)
            logger.info("leads shard %d", shard)
            self._on_gained(shard)
        elif not leads and shard in self._led:
            self._led.discard(shard)
            logger.warning("does not lead shard %d any more", shard)
            self._on_lost(shard)

    def _wait_s(self, shard: int) -> float:
        return leadership.wait_s(
            self._views.get(shard),
            identity=self._identity,
            terms=self._terms,
            now=self._clock.monotonic(),
            num_led=len(self._led),
        )

    async def give_back(self) -> None:
        """Write nothing any more and let anyone take what is led; only after `run` was cancelled."""
        for shard in sorted(self._led):
            self._fence.set(shard, -math.inf)
            try:
                await self._give_back(shard)
            except ApiError as error:
                logger.warning("could not give the Lease of shard %d back: %s", shard, error)
        self._led.clear()

    async def _give_back(self, shard: int) -> None:
        for _ in range(_GIVEN_BACK_TRIES):
            try:
                await self._write(shard, leadership.given_back(self._views[shard].record))
                return
            except ApiError as error:
                if error.status != _CONFLICT:
                    raise
            # A renewal that was cancelled on its way arrives all the same, before or after what is read here.
            if (await self._read(shard)).record.holder != self._identity:
                return
        raise ApiError(f"it changed {_GIVEN_BACK_TRIES} times meanwhile", status=_CONFLICT)


def record_of(body: Mapping[str, Any]) -> Record:
    """Return a Lease of the API server as a record."""
    spec = body.get("spec") or {}
    return Record(
        holder=str(spec.get("holderIdentity") or ""),
        lease_s=float(spec.get("leaseDurationSeconds") or 0),
        version=str(body["metadata"].get("resourceVersion", "")),
        transitions=int(spec.get("leaseTransitions") or 0),
    )


def lease_body(terms: LeaderElection, shard: int, record: Record, *, now: float) -> dict[str, Any]:
    """Return a record as the API server takes it. now: unix seconds, for people who read it and for no one else."""
    metadata = {"name": lease_name(terms, shard), "namespace": terms.namespace}
    spec: dict[str, Any] = {
        "leaseDurationSeconds": max(1, math.ceil(record.lease_s)),
        "leaseTransitions": record.transitions,
        "renewTime": datetime.datetime.fromtimestamp(now, tz=datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }
    if record.holder:
        spec["holderIdentity"] = record.holder
    if record.version:
        metadata["resourceVersion"] = record.version
    kind = kinds.LEASE
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec}
