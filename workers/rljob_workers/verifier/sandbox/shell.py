"""An agent's shell: commands in a place of its own, each a confined process tree that is gone once it returns.

open(episode) -> exec, read, write, ... -> reset. The same confinement as for programs of the policy (`programs.py`),
with two folders that may be written to (`scratch.py`) and the machine's programs, which may be run. What one command
leaves for the next one of its episode are files alone: its processes are killed, variables and working folder are the
same each time. What an episode leaves for the next one is nothing, which `reset` proves or says that it cannot.
The time that commands take and what is returned of them count against budgets of the episode.
"""

import dataclasses
import os
import pathlib
import secrets
import time
from collections.abc import Callable, Mapping

from rljob_api import errors
from rljob_workers.verifier.sandbox import programs
from rljob_workers.verifier.sandbox.confinement import landlock, profile
from rljob_workers.verifier.sandbox.processes import spawn
from rljob_workers.verifier.sandbox.processes.spawn import CannotRunError
from rljob_workers.verifier.sandbox.scratch import Scratch

SHELL = "/bin/sh"
# Programs, and what they run and read in turn.
_PROGRAMS = ("/bin", "/usr/bin", "/usr/local/bin", "/usr/libexec", "/lib", "/lib64", "/usr/lib", "/usr/lib64")
_DATA = ("/usr/share", "/usr/include")
_RUN = int(landlock.Fs.READ_FILE | landlock.Fs.READ_DIR | landlock.Fs.EXECUTE)
_READ = int(landlock.Fs.READ_FILE | landlock.Fs.READ_DIR)
_DEVICES = {
    "/dev/null": int(landlock.Fs.READ_FILE | landlock.Fs.WRITE_FILE),
    "/dev/zero": int(landlock.Fs.READ_FILE),
    "/dev/urandom": int(landlock.Fs.READ_FILE),
}
# What no command may do, tried before the first episode.
_FORBIDDEN: Mapping[str, str] = {
    "reading a file outside": "cat /etc/passwd",
    "reading /proc": "cat /proc/self/environ",
    "writing outside": 'echo x > "$OUTSIDE"',
    "making a folder outside": 'mkdir "$OUTSIDE"',
    "removing its own folder": 'rmdir "$TMPDIR"',
    "changing a mode outside": "chmod u+x /bin/sh",
    "a signal to its runner": "kill -0 $PPID",
    "a socket": "python3 -c 'import socket; socket.socket()'",
    "a link to a file outside": "ln /bin/sh linked",
}
# Of the machine's own commands that plant and look.
_OWN_S, _OWN_BYTES, _OWN_TRIES, _SEPARATOR = 60.0, 64 << 10, 4, "variables:"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Of one episode: seconds that its commands take, bytes that are returned of them, memory of each command's tree,
    bytes and entries of its files.
    """

    wall_s: float = 600.0
    output_bytes: int = 1 << 20
    memory_bytes: int = 1 << 30
    scratch_bytes: int = 256 << 20
    scratch_entries: int = 10_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a command ended. exit_code: negative for a signal. stopped: the limit that ended it, as in `programs.Run`, or
    `disk`, with which the episode's files are removed; empty if none did. truncated: there was more output than this.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    truncated: bool
    stopped: str = ""


class SpentError(Exception):
    """The episode has used up its budget: no command runs any more."""


class NotCleanError(Exception):
    """Something of an episode is still there, or it cannot be known: the place is not to be used again."""


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """What runs: a text for the shell, in a folder, with these variables and no others."""

    text: str
    folder: str
    environment: dict[str, str]
    own: tuple[str, ...]

    def request_fields(self) -> dict[str, object]:
        """Return its part of a process's request."""
        return {
            "command": [SHELL, "-c", self.text],
            "folder": self.folder,
            "environment": self.environment,
            "packages": {"load": [], "modules": {}},
        }

    def readable(self) -> dict[str, int]:
        """Return what it may read in addition to what every program may, by its real path, and the rights on it."""
        rights = dict.fromkeys(_PROGRAMS, _RUN) | dict.fromkeys((*_DATA, *self.own), _READ)
        folders = {os.path.realpath(path): right for path, right in rights.items() if os.path.isdir(path)}
        return {**folders, **{path: right for path, right in _DEVICES.items() if os.path.exists(path)}}


class Place:
    """A runner's place for one episode at a time. Not for several threads."""

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        confined: profile.Confinement,
        budget: Budget,
        start: spawn.Start = spawn.fresh,
        survivors: Callable[[], frozenset[int]] = frozenset,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make it in a folder that is there and empty. survivors: processes of commands that have not ended.

        Raises SandboxError where the machine cannot confine what may write.
        """
        if not (confined.abi and confined.asks):
            raise errors.SandboxError(
                f"isolation {profile.LEVEL}: a shell needs Landlock and user notification of seccomp, and this kernel"
                " lacks one of them"
            )
        self._scratch = Scratch(folder, most_bytes=budget.scratch_bytes, most_entries=budget.scratch_entries)
        self._confined = dataclasses.replace(confined, writable=self._scratch.writable(confined.abi))
        self.budget, self._start, self._survivors, self._now_s = budget, start, survivors, now_s
        self._clean = self._scratch.fingerprint()

    def verify(self) -> None:
        """Try what no command may do. Raises SandboxError with what succeeded, or where nothing can be tried."""
        canary = self._scratch.work.parent / "outside"
        # The last one must succeed: otherwise nothing was tried.
        script = "".join(f"({attempt}) > /dev/null 2>&1 && echo '{name}'\n" for name, attempt in _FORBIDDEN.items())
        try:
            outcome = self._own(f"OUTSIDE={canary}\n{script}echo x > tried && rm tried")
        except CannotRunError as error:
            raise errors.SandboxError(f"isolation {profile.LEVEL} cannot be applied to a shell: {error}") from error
        if outcome.stdout or outcome.exit_code:
            reached = (
                "; ".join(os.fsdecode(outcome.stdout).splitlines()) or f"no command (exit code {outcome.exit_code})"
            )
            raise errors.SandboxError(f"isolation {profile.LEVEL} does not hold for a shell: {reached} succeeded")

    def open(self, episode: str) -> "Session":
        """Return a session with a whole budget. Raises NotCleanError if something of an earlier one is there."""
        if self._scratch.fingerprint() != self._clean:
            raise NotCleanError(f"the place is not as it was made, before episode {episode!r}")
        return Session(episode, self, self._scratch, self._now_s)

    def run(self, text: str, *, wall_s: float, output_bytes: int) -> Outcome:
        """Run a command and return once its processes are gone.

        Raises CannotRunError, and OSError of a folder that cannot be emptied: no command is to blame.
        """
        scratch, budget = self._scratch, self.budget
        environment = {
            **spawn.ENVIRONMENT,
            "HOME": str(scratch.work),
            "TMPDIR": str(scratch.tmp),
            "PATH": f"{scratch.bin}:/usr/local/bin:/usr/bin:/bin",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = Command(text, str(scratch.work), environment, (str(scratch.bin),))
        limits = programs.Limits(
            cpu_s=wall_s,
            wall_s=wall_s,
            memory_bytes=budget.memory_bytes,
            output_bytes=output_bytes,
            may_fork=True,
            file_bytes=budget.scratch_bytes,
            is_cut=True,
        )
        ended = programs.run(
            command, stdin=b"", limits=limits, confined=self._confined, start=self._start, look=scratch.look
        )
        if ended.stopped == "starved":
            raise CannotRunError("the machine gave a command no time")
        stopped = ended.stopped
        if scratch.exceeded():
            # No later command could remove it: looks would end that, too.
            stopped = "disk"
            scratch.clear()
        return Outcome(
            exit_code=ended.exit_code,
            stdout=ended.output[:output_bytes],
            stderr=ended.errors[:output_bytes],
            truncated=ended.cut,
            stopped=stopped,
        )

    def reset(self) -> None:
        """Remove all that an episode left, and prove that nothing stays. Raises NotCleanError.

        The proof is of this very place: a command plants a file, a folder, a variable and a process in it, they are
        seen, removed as an episode's are, and looked for by another command.
        """
        try:
            self._clear()
            canary = secrets.token_hex(16)
            self._output_of(
                f'export CANARY={canary}; echo {canary} > "$HOME/{canary}"; mkdir -p "$TMPDIR/{canary}"; sleep 600 &'
            )
            if self._scratch.fingerprint() == self._clean:
                raise NotCleanError("a canary could not be planted, so that its absence would prove nothing")
            self._clear()
            listed = self._output_of(f'ls -A "$HOME"; ls -A "$TMPDIR"; echo {_SEPARATOR}; env')
        except (OSError, CannotRunError) as error:
            raise NotCleanError(f"a place could not be emptied: {error}") from error
        if canary in listed or not listed.startswith(_SEPARATOR):
            raise NotCleanError("a command sees something in a place that is empty")

    def _clear(self) -> None:
        if survivors := self._survivors():
            raise NotCleanError(f"{len(survivors)} processes of commands have not ended")
        self._scratch.clear()
        if self._scratch.fingerprint() != self._clean:
            raise NotCleanError("the place is not as it was made, after all was removed")

    def _own(self, text: str) -> Outcome:
        """Run a command of the machine's own, again where the machine gives it no time. Raises CannotRunError."""
        for tries_left in reversed(range(_OWN_TRIES)):
            try:
                return self.run(text, wall_s=_OWN_S, output_bytes=_OWN_BYTES)
            except CannotRunError:
                if not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _output_of(self, text: str) -> str:
        outcome = self._own(text)
        if outcome.exit_code or outcome.stopped:
            raise NotCleanError(f"a command of the machine's own failed: {outcome.stopped or outcome.exit_code}")
        return os.fsdecode(outcome.stdout)


class Session:
    """One episode's. Not for several threads."""

    def __init__(self, episode: str, place: Place, scratch: Scratch, now_s: Callable[[], float]) -> None:
        """Of a place that is clean; `Place.open` is the way to make one."""
        self.episode = episode
        self._place, self._scratch, self._now_s = place, scratch, now_s
        self._wall_left_s, self._bytes_left = place.budget.wall_s, place.budget.output_bytes

    def exec(self, command: str, *, timeout_s: float, max_output: int) -> Outcome:
        """Run a command. max_output: bytes of each stream. Raises SpentError, CannotRunError, ValueError for a NUL.

        Both limits are at most what is left of the budget.
        """
        if "\0" in command:
            raise ValueError("a command has no NUL")
        if self._wall_left_s <= 0 or self._bytes_left <= 0:
            what = "time for commands" if self._wall_left_s <= 0 else "output"
            raise SpentError(f"the episode has used up its {what}")
        started_s = self._now_s()
        most = min(max_output, self._bytes_left)
        outcome = self._place.run(command, wall_s=min(timeout_s, self._wall_left_s), output_bytes=most)
        self._wall_left_s -= self._now_s() - started_s
        shown = outcome.stderr[: max(0, self._bytes_left - len(outcome.stdout))]
        self._bytes_left -= len(outcome.stdout) + len(shown)
        return dataclasses.replace(
            outcome, stderr=shown, truncated=outcome.truncated or len(shown) < len(outcome.stderr)
        )

    def read(self, path: str, max_bytes: int) -> bytes:
        """Return the beginning of a file. Raises QuotaError with a sentence, SpentError."""
        if self._bytes_left <= 0:
            raise SpentError("the episode has used up its output")
        data = self._scratch.read(path, min(max_bytes, self._bytes_left))
        self._bytes_left -= len(data)
        return data

    def write(self, path: str, data: bytes) -> None:
        """Write a file. Raises QuotaError with a sentence."""
        self._scratch.write(path, data)

    def reset(self) -> None:
        """Empty the place, proven; what is left of the budget stays. Raises NotCleanError."""
        self._place.reset()
