"""Claims at several servers over gRPC; the pools behind them are fakes."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from rljob_api import errors
from rljob_testing.clock import FakeClock
from rljob_workers.rpc import channel, environment, environment_service


class FakePool:
    """Lends `num_free` places by name, which are gone with the pool."""

    def __init__(self, name: str, num_free: int) -> None:
        self.name, self.num_free, self.lease_s = name, num_free, 300.0
        self.leases: list[str] = []

    async def claim(self, episode: str, wait_s: float) -> str:
        if self.num_free == len(self.leases):
            raise environment_service.FullError(f"{self.name} is full for {wait_s:g} s")
        self.leases.append(f"{self.name} {episode}")
        return self.leases[-1]

    async def command(self, lease: str, command: str, *, timeout_s: float, max_output: int) -> Mapping[str, Any]:
        if lease not in self.leases:
            raise errors.FencedError("no such lease")
        return {"stdout": f"{self.name}: {command}".encode()}

    async def read(self, lease: str, path: str, max_bytes: int) -> Mapping[str, Any]:
        raise NotImplementedError

    async def write(self, lease: str, path: str, data: bytes) -> Mapping[str, Any]:
        raise NotImplementedError

    async def reset(self, lease: str) -> None:
        raise NotImplementedError

    async def release(self, lease: str) -> None:
        self.leases.remove(lease)


class Fleet:
    """Servers behind one name, which each look-up of it lists; `clock` is the claims'."""

    def __init__(self, **num_free: int) -> None:
        self.pools = {name: FakePool(name, count) for name, count in num_free.items()}
        self.clock, self.addresses = FakeClock(), dict[str, str]()
        self.looked_up: list[str] = []

    async def __aenter__(self) -> "Fleet":
        self.servers = {name: channel.aio_server(None) for name in self.pools}
        for name, server in self.servers.items():
            environment_service.serve(self.pools[name], server)
            self.addresses[name] = f"127.0.0.1:{channel.bind(server, '127.0.0.1:0', None)}"
            await server.start()
        self.client = environment.Environments(
            names=["places.svc:1"], tls=None, clock=self.clock, look_up=self.look_up, draw=random.Random(0)
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        for server in self.servers.values():
            await server.stop(None)

    async def look_up(self, name: str) -> Sequence[str]:
        self.looked_up.append(name)
        # A second passes with each: those who find nothing give up.
        self.clock.tick(1.0)
        return list(self.addresses.values())


async def test_episodes_spread_over_servers_and_all_calls_of_one_go_to_its_own() -> None:
    async with Fleet(a=2, b=2) as fleet:
        async with fleet.client.open("1", wait_s=60.0) as first, fleet.client.open("2", wait_s=60.0) as second:
            assert sorted(len(pool.leases) for pool in fleet.pools.values()) == [1, 1]
            replies = [await shell.exec("ls", timeout_s=1.0, max_output=9) for shell in (first, second, first)]
            assert sorted({reply.stdout for reply in replies}) == [b"a: ls", b"b: ls"]
            assert replies[0] == replies[2]
        assert [pool.leases for pool in fleet.pools.values()] == [[], []]


async def test_a_server_that_is_full_or_gone_is_passed_over() -> None:
    async with Fleet(full=0, gone=1, free=1) as fleet:
        await fleet.servers["gone"].stop(None)
        async with fleet.client.open("1", wait_s=60.0):
            assert fleet.pools["free"].leases == ["free 1"]


async def test_a_server_that_comes_back_under_another_address_is_found() -> None:
    async with Fleet(old=1, new=1) as fleet:
        new = fleet.addresses.pop("new")
        async with fleet.client.open("1", wait_s=60.0):
            fleet.addresses = {"new": new}
            async with fleet.client.open("2", wait_s=60.0):
                assert fleet.pools["new"].leases == ["new 2"]
            assert fleet.pools["old"].leases == ["old 1"]
        assert fleet.pools["old"].leases == []


@pytest.mark.parametrize(("num_free", "why"), [({"a": 0}, "a is full"), ({}, "its name has no address")])
async def test_no_place_in_time_is_an_infrastructures_failure(num_free: dict[str, int], why: str) -> None:
    async with Fleet(**num_free) as fleet:
        with pytest.raises(errors.UnavailableError, match=f"within 0.5 s: .*{why}") as raised:
            async with fleet.client.open("1", wait_s=0.5):
                pytest.fail("there is no place")
        assert raised.value.fault is errors.Fault.INFRA


async def test_an_address_of_this_machine_is_its_own() -> None:
    assert await environment.addresses_of("127.0.0.1:7") == ("127.0.0.1:7",)
    assert await environment.addresses_of("[::1]:7") == ("[::1]:7",)
