"""Ports of loopback for processes that are given theirs: no two of any test that runs on this machine are the same; and
connections to them that come as their server closes.

A port that the system picks (bind to 0) is free again once it is known, and may go to a connection before its process
has started. These are taken in turn from a range that connections do not use, by a counter in a file.
"""

import asyncio
import contextlib
import fcntl
import os
import pathlib
import socket
import tempfile

from rljob_workers.local.run.resources import PORTS, is_free


def free_ports(count: int) -> list[int]:
    """Return ports that nothing listens on, and that no other call returns before all others of the range were."""
    # Not in the folder that each session of tests has of its own: sessions that run side by side share the counter.
    shared = os.environ.get("PYTEST_DEBUG_TEMPROOT") or tempfile.gettempdir()
    path = pathlib.Path(shared) / f"rljob-test-ports-{os.getuid()}"
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="ascii") as counter:
        fcntl.flock(counter, fcntl.LOCK_EX)
        at = int(counter.read() or 0)
        found = list[int]()
        for step in range(len(PORTS)):
            port = PORTS[(at + step) % len(PORTS)]
            if is_free(port):
                found.append(port)
            if len(found) == count:
                counter.seek(0)
                counter.truncate()
                counter.write(str((at + step + 1) % len(PORTS)))
                return found
    raise OSError(f"{count} ports are needed, and fewer are free")


async def connected(port: int, *, rounds: int) -> socket.socket:
    """Return a connection so many rounds of the event loop after it was made: its server may be amid accepting it."""
    peer = socket.create_connection(("127.0.0.1", port))
    peer.setblocking(False)
    for _ in range(rounds):
        await asyncio.sleep(0)
    return peer


async def until_closed(peer: socket.socket) -> None:
    """Return once the server has closed the connection. Raises TimeoutError if it stays open."""
    with peer, contextlib.suppress(ConnectionResetError):
        async with asyncio.timeout(10):
            assert await asyncio.get_running_loop().sock_recv(peer, 1) == b""
