"""Which channels are open while certificates are renewed, with channels that only record."""

import pathlib
from typing import Any

from rljob_testing.certificates import Authority
from rljob_workers.rpc import tls


class Recorded:
    """Stands in for a blocking channel."""

    def __init__(self, number: int) -> None:
        self.number, self.num_closed = number, 0

    def unary_unary(self, method: str) -> Any:
        return lambda request: (self.number, method, request)

    def close(self) -> None:
        self.num_closed += 1


def test_a_renewal_opens_a_channel_and_closes_the_one_before_the_last(tmp_path: pathlib.Path) -> None:
    authority, opened = Authority(), list[Recorded]()

    def open_one(_: tls.Pem) -> Any:
        opened.append(Recorded(len(opened)))
        return opened[-1]

    channel = tls.ReloadingChannel(authority.files(tmp_path, "rollout"), open_one)
    ask = channel.unary_unary("/a/B")
    assert ask("x") == (0, "/a/B", "x")
    assert ask("x")[0] == 0
    for renewal in (1, 2, 3):
        authority.files(tmp_path, "rollout")
        # The same callable goes out on the newest channel.
        assert ask("x")[0] == renewal
        assert [one.num_closed for one in opened] == [1] * (renewal - 1) + [0, 0]
    channel.close()
    assert [one.num_closed for one in opened] == [1, 1, 1, 1]


async def test_asyncio_channels_are_closed_in_the_same_order(tmp_path: pathlib.Path) -> None:
    authority, opened = Authority(), list[_Aio]()

    def open_one(_: tls.Pem) -> Any:
        opened.append(_Aio())
        return opened[-1]

    channel = tls.ReloadingAioChannel(authority.files(tmp_path, "rollout"), open_one)
    for _ in range(3):
        authority.files(tmp_path, "rollout")
        channel.current()
    await channel.close()
    assert [one.num_closed for one in opened] == [1, 1, 1, 1]


class _Aio:
    def __init__(self) -> None:
        self.num_closed = 0

    async def close(self) -> None:
        self.num_closed += 1
