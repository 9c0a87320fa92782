"""Cgroups (version 1) of a node: one folder in every controller, so that its pods are found and ended together."""

import contextlib
import os
import pathlib
import signal
import time
from collections.abc import Iterator

ROOT = pathlib.Path("/sys/fs/cgroup")
# A new cpuset is empty, and an empty one takes no process.
_CPUSET = ("cpuset.cpus", "cpuset.mems")
_END_S = 10.0


def create(name: str) -> None:
    """Make the group in every controller; one that exists is kept."""
    for controller in _controllers():
        folder = controller / name
        folder.mkdir(exist_ok=True)
        for key in _CPUSET:
            if (folder / key).exists():
                (folder / key).write_text((controller / key).read_text())


def kill(name: str) -> None:
    """Kill every process in the group and below it, until none is left or _END_S passed."""
    end = time.monotonic() + _END_S
    while (pids := set(_pids(name))) and time.monotonic() < end:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def delete(name: str) -> None:
    """Remove the group from every controller; a folder that still holds a process stays."""
    for controller in _controllers():
        for folder, _, _ in os.walk(controller / name, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)


def _controllers() -> list[pathlib.Path]:
    # Joined controllers appear under several names, as links to one folder.
    return [path for path in ROOT.iterdir() if path.is_dir() and not path.is_symlink()]


def _pids(name: str) -> Iterator[int]:
    for controller in _controllers():
        # Groups go while they are walked through; `os.walk` passes over them.
        for folder, _, _ in os.walk(controller / name):
            with contextlib.suppress(OSError):
                yield from (int(line) for line in pathlib.Path(folder, "cgroup.procs").read_text().split())
