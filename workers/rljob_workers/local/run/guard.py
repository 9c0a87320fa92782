"""The parent of one role's process: `python -P -m rljob_workers.local.run.guard --report-fd N -- PROGRAM ARG...`.

    runner --(stdin: the leash)--> guard --(fork, exec)--> role --> its workers, in whatever sessions they open

The guard exists so that nothing outlives the runner, however it dies. Its stdin is a pipe that only the runner holds
open: when that closes, the guard kills the whole tree. Descendants that lose their parent are handed to the guard
(child subreaper), so a worker in a session of its own is found too. When the role ends, the guard kills what is left
of the tree, waits until all of it is gone, reports `exit CODE` (negative: the signal) and ends: so a runner that saw
`exit` may start the role again. SIGTERM is passed on to the role. Should the guard itself be killed, the role dies
with it (RLJOB_DIE_WITH_PARENT) and its orphans go to the runner. A guard also holds the run directory's lock, so that
no other run begins there while a process of this one lives. Standard library only: one runs alongside each role.
"""

import argparse
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from rljob_workers.local import processes

_GONE_WITHIN_S = 15.0
_POLL_S = 0.01


def main(argv: Sequence[str] | None = None) -> int:
    """Start the program, guard it, report how it ended. Returns 0 unless it could not be started."""
    parser = argparse.ArgumentParser(prog="rljob-guard", description=__doc__)
    parser.add_argument(
        "--report-fd", type=int, required=True, help="pipe to report to; other inherited files are just held"
    )
    parser.add_argument("--directory", default=None, help="where the program starts; by default where this one did")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    arguments = parser.parse_args(argv)
    processes.adopt_orphans()
    wakeup = _wake_on(signal.SIGCHLD, signal.SIGTERM)
    program = arguments.program[1:] if arguments.program[:1] == ["--"] else arguments.program
    role = _start(program or ["false"], arguments.directory)
    _report(arguments.report_fd, f"pid {role.pid}")
    code = _watch(role, wakeup)
    left = clear()
    _report(arguments.report_fd, f"left {left}" if left else f"exit {code}")
    return 0


def _start(program: Sequence[str], directory: str | None) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "RLJOB_DIE_WITH_PARENT": "1"}
    # A session of its own: a Ctrl-C at the terminal reaches the runner alone, which decides the order of stopping.
    return subprocess.Popen(
        list(program), stdin=subprocess.DEVNULL, env=environment, cwd=directory, start_new_session=True
    )


def _wake_on(*numbers: int) -> int:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    return reader


def _watch(role: "subprocess.Popen[bytes]", wakeup: int) -> int:
    leash = sys.stdin.fileno()
    while (code := role.poll()) is None:
        ready, _, _ = select.select([leash, wakeup], [], [], 1.0)
        if leash in ready and not os.read(leash, 1):
            role.kill()
            return role.wait()
        if wakeup in ready and signal.SIGTERM in os.read(wakeup, 64):
            role.terminate()
        _reap_orphans(role.pid)
    return code


def clear() -> int:
    """Kill every descendant of this process; return how many are still there after 15 s."""
    end = time.monotonic() + _GONE_WITHIN_S
    while True:
        left = processes.descendants(os.getpid())
        for pid in left:
            processes.kill(pid)
        _reap()
        if not left or time.monotonic() > end:
            return len(left)
        time.sleep(_POLL_S)


def _reap_orphans(role: int) -> None:
    """Reap adopted processes that ended, but never the role itself, whose exit status `Popen` must see."""
    try:
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != role:
            os.waitpid(ended.si_pid, os.WNOHANG)
    except ChildProcessError:
        return


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return


def _report(fd: int, line: str) -> None:
    try:
        os.write(fd, f"{line}\n".encode())
    except BrokenPipeError:
        # The runner is gone; the leash has said so already.
        return


if __name__ == "__main__":
    sys.exit(main())
