"""One role's process as the runner sees it: started under a guard, watched by its report, stopped through it."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence

from rljob_api import enums
from rljob_workers.local import processes, terminal

_GUARD = "rljob_workers.local.run.guard"
_TAIL_BYTES = 16 << 10


class Child:
    """A running (or ended) process of a role. Call `poll` to learn how it ended; the tree is gone when it says so."""

    def __init__(
        self,
        *,
        role: enums.Role,
        name: str,
        command: Sequence[str],
        log: pathlib.Path,
        env: Mapping[str, str],
        inherited_fds: Sequence[int] = (),
        directory: str | None = None,
    ) -> None:
        """Start `command`; stdout and stderr are appended to `log`. `name` distinguishes replicas. Raises OSError.

        `inherited_fds` are files that the guard (not the role) keeps open while the tree lives, such as a lock;
        `directory`: where the command starts, None for that of this process.
        """
        self.role, self.name, self.log = role, name, log
        self._report_fd, report = os.pipe()
        os.set_blocking(self._report_fd, False)
        self._heard = ""
        where = [] if directory is None else ["--directory", directory]
        with log.open("ab") as output:
            self._guard = subprocess.Popen(
                # -P: whatever folder this is, its files are not the library's.
                [sys.executable, "-P", "-m", _GUARD, "--report-fd", str(report), *where, "--", *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=dict(env),
                pass_fds=(report, *inherited_fds),
                start_new_session=True,
            )
        os.close(report)

    @property
    def guard_pid(self) -> int:
        """Return the pid of the guard: the root of the role's process tree."""
        return self._guard.pid

    @property
    def pid(self) -> int | None:
        """Return the pid of the role's own process, None until the guard has reported it."""
        return self._reported("pid")

    def poll(self) -> int | None:
        """Return the exit code (negative: signal) once the whole tree is gone, else None."""
        if self._guard.poll() is None:
            self._listen()
            return None
        self._listen()
        code = self._reported("exit")
        if code is None:
            # The guard was killed, or could not end the tree: what it left was handed to this process.
            self._clear()
            code = self._guard.returncode
        self._close()
        return code

    def terminate(self) -> None:
        """Ask the role to end (SIGTERM)."""
        if self._guard.poll() is None:
            self._guard.terminate()

    def kill(self) -> None:
        """Let go of the leash: the guard kills the whole tree."""
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.close()

    def last_lines(self, count: int = 1) -> list[str]:
        return last_lines(self.log, count)

    def _reported(self, word: str) -> int | None:
        self._listen()
        values = [line.split()[1] for line in self._heard.splitlines() if line.startswith(f"{word} ")]
        return int(values[-1]) if values else None

    def _listen(self) -> None:
        if self._report_fd < 0:
            return
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._report_fd, 4096):
                self._heard += data.decode()

    def _clear(self) -> None:
        if self.pid is None:
            return
        for pid in (self.pid, *processes.descendants(self.pid)):
            processes.kill(pid)

    def _close(self) -> None:
        self.kill()
        if self._report_fd >= 0:
            os.close(self._report_fd)
            self._report_fd = -1


def last_lines(log: pathlib.Path, count: int) -> list[str]:
    """Return the last `count` non-empty lines of a log, readable; none if there is no file."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    return [readable(line) for line in text.splitlines() if line.strip()][-count:]


def readable(line: str) -> str:
    """Return what a person wants of a log line: the message of one of ours, a foreign one as it is; both printable."""
    try:
        fields = json.loads(line)
        text = f"{fields['level']}: {fields['msg']}"
    except (ValueError, TypeError, KeyError, RecursionError):
        text = line.strip()
    return terminal.line(text)
