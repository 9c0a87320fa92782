"""Who gets which place, and when one is lent no more: with places that only record what they are asked."""

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from rljob_api import enums, errors, process_config
from rljob_testing.clock import FakeClock
from rljob_workers.environment import pool
from rljob_workers.rpc import environment_service
from rljob_workers.runtime import metrics
from rljob_workers.verifier.sandbox.processes import launcher

JOB = process_config.JobIdentity(name="job", namespace="tests", uid="uid")
LEASE_S = 100.0


class FakePlace:
    """A place without a process: `replies` by call, an exception is raised, a call named in `hangs` waits for ever."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.calls: list[str] = []
        self.replies: dict[str, dict[str, object] | Exception] = {}
        self.hangs: set[str] = set()
        self.is_ended = False

    async def exchange(self, request: bytes) -> dict[str, object]:
        (length,) = struct.unpack_from("<I", request)
        call = str(json.loads(request[4 : 4 + length])["call"])
        self.calls.append(call)
        if call in self.hangs:
            await asyncio.Event().wait()
        reply = self.replies.get(call, {})
        if isinstance(reply, Exception):
            raise reply
        return reply

    def cpu_s(self) -> float:
        return 0.0

    def note_programs(self) -> None:
        pass

    async def teardown(self) -> bool:
        self.is_ended = True
        return True


class Scene:
    """A pool over places that are numbered as they are started."""

    def __init__(self, num_places: int, *, max_waiting: int = 10, refusals: Callable[[int], Exception | None]) -> None:
        self.places: list[FakePlace] = []
        self.clock = FakeClock()
        self.metrics = metrics.Metrics(role=enums.Role.ENVIRONMENT, job=JOB)
        self._refusals, self._num_launches = refusals, 0
        size = pool.Size(num_places=num_places, max_waiting=max_waiting, lease_s=LEASE_S)
        self.pool = pool.Pool(size=size, launch=self._launch, metrics=self.metrics, clock=self.clock)

    async def _launch(self) -> launcher.Worker:
        self._num_launches += 1
        if refusal := self._refusals(self._num_launches):
            raise refusal
        self.places.append(FakePlace(len(self.places)))
        return self.places[-1]

    def count(self, name: str, **labels: str) -> float:
        value = self.metrics.registry.get_sample_value(
            name, {"rljob": JOB.name, "rljob_namespace": JOB.namespace, **labels}
        )
        return value or 0.0

    async def settled(self) -> None:
        """Give every task that can run its turn."""
        for _ in range(20):
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def started(
    num_places: int, *, refusals: Callable[[int], Exception | None] = lambda _: None, **options: Any
) -> AsyncIterator[Scene]:
    scene = Scene(num_places, refusals=refusals, **options)
    await scene.pool.start()
    try:
        yield scene
    finally:
        await scene.pool.close()
        assert all(place.is_ended for place in scene.places)


async def test_place_is_emptied_before_it_is_lent_again() -> None:
    async with started(1) as scene:
        first = await scene.pool.claim("a", 1.0)
        await scene.pool.call(first, {"call": "exec"})
        await scene.pool.release(first)
        second = await scene.pool.claim("b", 1.0)
        assert scene.places[0].calls == ["open", "exec", "close", "open"]
        assert first != second
        with pytest.raises(errors.FencedError):
            await scene.pool.call(first, {"call": "exec"})
        await scene.pool.release(first)
        await scene.pool.call(second, {"call": "exec"})


async def test_claim_waits_for_a_place_and_is_refused_when_none_becomes_free() -> None:
    async with started(1, max_waiting=1) as scene:
        lease = await scene.pool.claim("a", 1.0)
        with pytest.raises(environment_service.FullError, match="no place became free"):
            await scene.pool.claim("b", 0.001)
        waiting = asyncio.create_task(scene.pool.claim("c", 100.0))
        await scene.settled()
        with pytest.raises(environment_service.FullError, match="1 claims wait"):
            await scene.pool.claim("d", 100.0)
        await scene.pool.release(lease)
        assert await waiting
        assert scene.count("rljob_environment_claims_total", result="full") == 2
        assert scene.count("rljob_environment_claims_total", result="leased") == 2


async def test_place_that_is_not_proven_empty_is_never_lent_again() -> None:
    async with started(1) as scene:
        scene.places[0].replies["close"] = {"broken": "a file is still there"}
        await scene.pool.release(await scene.pool.claim("a", 1.0))
        await scene.pool.claim("b", 1.0)
        assert scene.places[0].is_ended
        assert scene.places[1].calls == ["open"]
        assert scene.count("rljob_environment_places_ended_total", reason="quarantined") == 1


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (launcher.WorkerLostError("gone"), "lost"),
        ({"broken": "the machine gave a command no time"}, "quarantined"),
    ],
)
async def test_place_that_breaks_ends_its_lease_with_a_failure_of_the_infrastructure(
    reply: dict[str, object] | Exception, reason: str
) -> None:
    async with started(1) as scene:
        lease = await scene.pool.claim("a", 1.0)
        scene.places[0].replies["exec"] = reply
        with pytest.raises(errors.UnavailableError) as raised:
            await scene.pool.call(lease, {"call": "exec"})
        assert raised.value.fault is errors.Fault.INFRA
        with pytest.raises(errors.FencedError):
            await scene.pool.call(lease, {"call": "exec"})
        await scene.pool.claim("b", 1.0)
        assert (scene.places[0].is_ended, scene.places[1].is_ended) == (True, False)
        assert scene.count("rljob_environment_places_ended_total", reason=reason) == 1


async def test_what_an_episode_is_to_blame_for_is_a_reply() -> None:
    async with started(1) as scene:
        lease = await scene.pool.claim("a", 1.0)
        scene.places[0].replies["read"] = {"refused": "not a file"}
        assert await scene.pool.call(lease, {"call": "read"}) == {"refused": "not a file"}
        assert await scene.pool.call(lease, {"call": "exec"}) == {}


async def test_lease_without_a_call_ends_and_a_call_prolongs_it() -> None:
    async with started(1) as scene:
        lease = await scene.pool.claim("a", 1.0)
        for _ in range(3):
            await scene.clock.advance(LEASE_S - 2.0)
            await scene.pool.call(lease, {"call": "exec"})
        await scene.clock.advance(LEASE_S + 2.0)
        await scene.settled()
        with pytest.raises(errors.FencedError):
            await scene.pool.call(lease, {"call": "exec"})
        assert scene.count("rljob_environment_leases_expired_total") == 1
        assert await scene.pool.claim("b", 1.0)


async def test_call_that_no_one_waits_for_any_more_costs_its_place() -> None:
    async with started(1) as scene:
        lease = await scene.pool.claim("a", 1.0)
        scene.places[0].hangs.add("exec")
        call = asyncio.create_task(scene.pool.call(lease, {"call": "exec"}))
        await scene.settled()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await scene.pool.claim("b", 1.0)
        assert scene.places[0].is_ended
        assert scene.count("rljob_environment_places_ended_total", reason="cancelled") == 1


async def test_place_that_ended_while_it_was_free_costs_a_claim_nothing_but_a_try() -> None:
    async with started(2) as scene:
        scene.places[0].replies["open"] = launcher.WorkerLostError("killed meanwhile")
        assert await scene.pool.claim("a", 1.0)
        assert scene.places[1].calls == ["open"]
        await scene.settled()
        assert scene.places[0].is_ended


async def test_new_place_is_tried_until_it_starts_and_meanwhile_says_why_not() -> None:
    refusals = {2: errors.UnavailableError("no memory"), 3: errors.UnavailableError("no memory")}
    async with started(1, refusals=refusals.get) as scene:
        lease = await scene.pool.claim("a", 1.0)
        scene.places[0].replies["exec"] = launcher.WorkerLostError("gone")
        with pytest.raises(errors.UnavailableError):
            await scene.pool.call(lease, {"call": "exec"})
        await scene.settled()
        assert scene.pool.failure == "no memory"
        await scene.clock.advance(60.0)
        await scene.clock.advance(60.0)
        assert await scene.pool.claim("b", 1.0)
        assert scene.pool.failure == ""


async def test_machine_that_cannot_confine_starts_no_place_and_leaves_none() -> None:
    scene = Scene(2, refusals={2: errors.SandboxError("layer landlock is missing")}.get)
    with pytest.raises(errors.SandboxError, match="landlock"):
        await scene.pool.start()
    assert [place.is_ended for place in scene.places] == [True]
