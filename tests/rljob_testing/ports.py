"""Ports of loopback for processes that are given theirs: no two of any test that runs on this machine are the same.

A port that the system picks (bind to 0) is free again once it is known, and may go to a connection before its process
has started. These are taken in turn from a range that connections do not use, by a counter in a file.
"""

import fcntl
import os
import pathlib
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
