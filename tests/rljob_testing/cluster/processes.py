"""Processes of the cluster: started with a log and a pid file, stopped by pid, and only if it still is that process."""

import contextlib
import os
import pathlib
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence

STOP_S = 10.0
POLL_S = 0.1


class NotReadyError(RuntimeError):
    """Something of the cluster did not become ready in time; the message has the end of its log."""


def start(run_dir: pathlib.Path, name: str, command: Sequence[str], *, pass_fds: Sequence[int] = ()) -> None:
    """Start a process with `<run_dir>/logs/<name>.log` and `<run_dir>/pids/<name>`; `pass_fds` stay open in it."""
    for folder in ("logs", "pids"):
        (run_dir / folder).mkdir(parents=True, exist_ok=True)
    with log_path(run_dir, name).open("ab") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=run_dir,
            start_new_session=True,
            pass_fds=pass_fds,
        )
    (run_dir / "pids" / name).write_text(f"{child.pid} {_started(child.pid)}")
    # It outlives this object, and `end` reaps it by pid: with a return code Popen neither warns nor waits.
    child.returncode = 0


def log_path(run_dir: pathlib.Path, name: str) -> pathlib.Path:
    """Return the log file of a process."""
    return run_dir / "logs" / f"{name}.log"


def alive(run_dir: pathlib.Path, name: str) -> bool:
    """Return whether the process that was started under this name still runs."""
    return _pid(run_dir / "pids" / name) is not None


def any_alive(run_dir: pathlib.Path) -> bool:
    """Return whether any process that was started in this run folder still runs."""
    return any(_pid(path) is not None for path in (run_dir / "pids").glob("*"))


def cpu_seconds(run_dir: pathlib.Path) -> dict[str, float]:
    """Return the processor seconds that each process has used, by its name with underscores, user and system."""
    used = dict[str, float]()
    for path in (run_dir / "pids").glob("*"):
        pid = _pid(path)
        if pid is not None:
            # Behind the name of the program, which may have spaces (proc(5)): utime and stime are fields 14 and 15.
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
            ticks = int(fields[11]) + int(fields[12])
            used[path.name.replace("-", "_")] = ticks / os.sysconf("SC_CLK_TCK")
    return used


def stop_all(run_dir: pathlib.Path) -> None:
    """Stop every process of a run folder, the latest first; a pid that was given to another process is left alone."""
    files = sorted((run_dir / "pids").glob("*"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in files:
        stop(run_dir, path.name)


def stop(run_dir: pathlib.Path, name: str) -> None:
    """Stop one process, asked first and killed after STOP_S; nothing happens if it is gone."""
    path = run_dir / "pids" / name
    pid = _pid(path)
    if pid is not None:
        end(pid)
    path.unlink(missing_ok=True)


def wait_until(run_dir: pathlib.Path, name: str, ready: Callable[[], bool], deadline_s: float) -> None:
    """Wait until `ready()`. Raises NotReadyError with the log's end when the process died or the time is over."""
    end = time.monotonic() + deadline_s
    while not ready():
        if not alive(run_dir, name) or time.monotonic() > end:
            tail = log_path(run_dir, name).read_text(errors="replace")[-2000:]
            raise NotReadyError(f"{name} was not ready within {deadline_s:.0f} s or ended:\n{tail}")
        time.sleep(POLL_S)


def _started(pid: int) -> str:
    """Return the start time of a process in clock ticks since boot, which with the pid names it for ever."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def _pid(path: pathlib.Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        pid, started = path.read_text().split()
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state != "Z" and _started(int(pid)) == started:
            return int(pid)
    return None


def end(pid: int) -> None:
    """End a process by pid: SIGTERM, and SIGKILL after STOP_S; reap it if it is a child."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            for number in (signal.SIGTERM, signal.SIGKILL):
                signal.pidfd_send_signal(handle, number)
                if select.select([handle], [], [], STOP_S)[0]:
                    break
        finally:
            os.close(handle)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to processes; one that has ended meanwhile needs none."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
