"""Ports of loopback for processes that are given theirs: no two of any test that runs on this machine are the same.

A port that the system picks (bind to 0) is free again once it is known, and may go to a connection before its process
has started. These are taken in turn from a range that connections do not use, by a counter in a file.
"""

import fcntl
import os
import pathlib
import socket
import tempfile

_FIRST, _COUNT = 10_000, 20_000


def free_ports(count: int) -> list[int]:
    """Return ports that nothing listens on, and that no other call returns for the next 20,000 ports."""
    path = pathlib.Path(tempfile.gettempdir()) / f"rljob-test-ports-{os.getuid()}"
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="ascii") as counter:
        fcntl.flock(counter, fcntl.LOCK_EX)
        at = int(counter.read() or 0)
        found = list[int]()
        for step in range(_COUNT):
            port = _FIRST + (at + step) % _COUNT
            if _is_free(port):
                found.append(port)
            if len(found) == count:
                counter.seek(0)
                counter.truncate()
                counter.write(str((at + step + 1) % _COUNT))
                return found
    raise OSError(f"{count} ports are needed, and fewer are free")


def _is_free(port: int) -> bool:
    with socket.socket() as opened:
        try:
            opened.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
