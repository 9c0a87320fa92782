"""Bytes from one process to many by torch.distributed, on gloo. Blocking, with deadlines; torch is used here alone.

    trainer    Rendezvous, Group(rank 0).send      rollouts    Group(rank 1...).receive

Groups are objects of their own, beside the default group that a trainer's ranks have: as many as are needed after each
other, of changing members. Bytes go through one chunk of memory that belongs to the group, so that an operation which
is given up touches nothing but that. Nothing here is encrypted or knows who connects: receivers check digests.
"""

import datetime
import socket
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from rljob_api import enums, errors, process_config
from rljob_workers.weights import deadlines

# The stubs of torch.distributed know neither that these are exported nor what a group can do.
_c10d: Any = dist
# Memory for each member, and what has one deadline.
CHUNK_BYTES = enums.PIECE_BYTES
_MOST_PORT = (1 << 16) - 1
TIMEOUT_S = deadlines.piece_deadline_s(CHUNK_BYTES)


class Rendezvous:
    """Where members of groups find one another: a small store of addresses on `host`. `address`: host:port."""

    def __init__(self, host: str, port: int = 0) -> None:
        """port: 0 for any. Raises UnavailableError if it is taken."""
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = socket.create_server((host, port), family=family)
            port = listener.getsockname()[1]
            self._store = _c10d.TCPStore(
                host, port, None, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
            )
        except (OSError, RuntimeError) as error:
            raise errors.UnavailableError(f"members cannot meet on {host}:{port}: {error}") from error
        self.address = process_config.host_and_port(host, port)


class Group:
    """One member's end of a group. Rank 0 sends, the others receive, each the same sizes in the same order.

    After an error it is of no further use to anybody: what the others have received of it is not known.
    """

    def __init__(
        self,
        rendezvous: str,
        *,
        number: int,
        rank: int,
        size: int,
        timeout_s: float = TIMEOUT_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Return once all `size` members are here, each with a rank of its own. number: used once at a rendezvous.

        timeout_s: of this, and of each chunk. Raises UnavailableError when it is over, or what WireError says.
        """
        host, _, port = rendezvous.rpartition(":")
        host = host.strip("[]")
        if not (host and port.isdecimal() and int(port) <= _MOST_PORT and 0 <= rank < size):
            raise errors.WireError(f"no group of {size} has rank {rank} and meets at {rendezvous!r}")
        self._size, self._now = size, now
        self._timeout = datetime.timedelta(seconds=timeout_s)
        self._chunk = torch.empty(CHUNK_BYTES, dtype=torch.uint8)
        try:
            store = _c10d.TCPStore(
                host, int(port), None, is_master=False, wait_for_workers=False, timeout=self._timeout
            )
            options = _c10d.ProcessGroupGloo._Options()
            options._timeout = self._timeout
            options._devices = [_c10d.ProcessGroupGloo.create_device(hostname=_own_address(host, int(port)))]
            self._group: Any = _c10d.ProcessGroupGloo(_c10d.PrefixStore(f"group-{number}", store), rank, size, options)
        except (OSError, RuntimeError) as error:
            raise errors.UnavailableError(f"group {number} at {rendezvous} did not come together: {error}") from error

    def send(self, num_bytes: int, read: Callable[[int, memoryview], None]) -> None:
        """Send `num_bytes`, which `read(offset, into)` copies out chunk by chunk. Raises what it raises, or
        UnavailableError if a member takes no chunk within the deadline, or all take too long together.
        """
        end = self._now() + deadlines.broadcast_deadline_s(num_bytes, size=self._size)
        for start in range(0, num_bytes, CHUNK_BYTES):
            if self._now() > end:
                raise errors.UnavailableError(f"{start} of {num_bytes} bytes were sent when the time for all was over")
            length = min(CHUNK_BYTES, num_bytes - start)
            read(start, self._memory[:length])
            self._broadcast(length)

    def receive(self, into: memoryview) -> None:
        """Fill `into`. Raises UnavailableError if a chunk does not come within the deadline."""
        for start in range(0, len(into), CHUNK_BYTES):
            length = min(CHUNK_BYTES, len(into) - start)
            self._broadcast(length)
            into[start : start + length] = self._memory[:length]

    @property
    def _memory(self) -> memoryview:
        return self._chunk.numpy().data

    def _broadcast(self, length: int) -> None:
        if self._group is None:
            raise errors.UnavailableError("the group has ended")
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor, options.timeout = 0, 0, self._timeout
        try:
            self._group.broadcast([self._chunk[:length]], options).wait(self._timeout)
        except RuntimeError as error:
            self.close()
            raise errors.UnavailableError(f"a broadcast broke off: {error}") from error

    def close(self) -> None:
        """Leave: the others hear of it at their next operation."""
        self._group = None


def _own_address(host: str, port: int) -> str:
    """Return this machine's address on the network that leads to `host`, which other members can reach it at."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    # Nothing is sent: connecting a datagram socket only chooses the way.
    with socket.socket(family, kind) as chosen:
        chosen.connect(address)
        return str(chosen.getsockname()[0])
