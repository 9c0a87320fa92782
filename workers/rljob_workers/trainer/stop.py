"""A request to stop a trainer: handed on to its ranks, of which one may not listen yet. No torch."""

import os
import pathlib
import signal

from rljob_api import enums


class Stop:
    """From the signal to the exit code."""

    def __init__(self) -> None:
        """Nothing was asked for."""
        self._is_requested = False

    def hand_on(self) -> None:
        """Ask the ranks to stop after their step. Raises SystemExit(80) if there are none yet: nothing is lost then."""
        self._is_requested = True
        ranks = children(os.getpid())
        for rank in ranks:
            os.kill(rank, signal.SIGTERM)
        if not ranks:
            raise SystemExit(int(enums.ExitCode.STOPPED_ON_REQUEST))

    def code(self, ended: int) -> int:
        """Return the trainer's exit code from that of its ranks: one that the request itself ended had not begun."""
        was_ended = self._is_requested and ended == 128 + signal.SIGTERM
        return int(enums.ExitCode.STOPPED_ON_REQUEST) if was_ended else ended


def children(parent: int) -> list[int]:
    """Return the process ids whose parent is `parent`."""
    pids = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            # Fields follow the command's closing bracket: state, parent, ...
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            pids.append(int(path.parent.name))
    return pids
