"""Runs one program of the policy's on one input and says how it ended; called in a grading worker, never elsewhere.

start -> feed and drain -> kill and reap, in one call. Every run: a process of its own (`processes/spawn.py`: a fresh
interpreter, -I -S -B; `processes/warm.py`: the fork of one that has only imported) in a session of its own, no new
privileges, rlimits (CPU, address space, stack, no file content, no core, 64 descriptors), a fixed environment, no
descriptor but the standard three and the reply, its own and its descendants' CPU, memory and processes polled, the
whole tree killed and reaped, orphans included.
With a `confinement`, which is isolation level `confined`: no network, no file but the interpreter's and its libraries',
nothing written, no signal, limit or priority of another process touched, no new session or group, no process at all
unless the grader grants it; each process and thread is started by leave of this one, which no program can outrun, and
of paths that it may not read it learns nothing (`requests/gate.py`). Without one, level `none`, none of that, and the
job must ask for it by name.
The tests of a repository (`repository.py`) are such a run, too; it reads its own folder and pytest besides.
NOT covered: faults of the shared kernel.
"""

import contextlib
import dataclasses
import json
import math
import os
import resource
import secrets
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import IO, Protocol

from rljob_workers.verifier.sandbox.confinement import notifications, profile
from rljob_workers.verifier.sandbox.processes import packages, procfs, records, shortage, spawn
from rljob_workers.verifier.sandbox.processes.spawn import CannotRunError
from rljob_workers.verifier.sandbox.requests.answer_delay import AnswerDelay
from rljob_workers.verifier.sandbox.requests.fork_gate import ForkGate, Room
from rljob_workers.verifier.sandbox.requests.gate import Gate
from rljob_workers.verifier.sandbox.requests.path_view import PathView

MAX_PROCESSES = 64
POLL_S = 0.02
# How soon it is looked again whether there is room for one more process: those that were granted start at once, if the
# machine has time for them.
_RETRY_S = 0.005
_CHUNK = 1 << 16
_REAP_S = 5.0
_EMPTY_SCANS = 2
_Feed = IO[bytes] | socket.socket


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one run: CPU seconds of the tree, wall seconds, memory of the tree, bytes of each stream.

    may_fork: whether a confined program may have processes in addition to its own. They and all threads are at most 64:
    a program that asks for more is stopped, as one that takes too much memory is. file_bytes: how large each file may
    be that it writes. is_cut: what goes beyond output_bytes is dropped, and the program continues.
    """

    cpu_s: float
    wall_s: float
    memory_bytes: int
    output_bytes: int
    may_fork: bool = False
    file_bytes: int = 0
    is_cut: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What runs: source, and for a call the function and its encoded arguments.

    otherwise: further texts of the answer; what runs is the first of all that can be what is asked for. packages: what
    it may import besides the standard library.
    """

    source: str
    compat: bool
    otherwise: Sequence[str] = ()
    fn_name: str = ""
    arguments: Sequence[object] = ()
    packages: tuple[str, ...] = ()

    def request_fields(self) -> dict[str, object]:
        """Return its part of a process's request."""
        return {
            "sources": [self.source, *self.otherwise],
            "compat": self.compat,
            "fn_name": self.fn_name,
            "arguments": list(self.arguments),
            "packages": packages.request_fields(self.packages),
        }

    def readable(self) -> dict[str, int]:
        """Return what it may read in addition to what every program may, by its real path, and the rights on it."""
        return dict(packages.installed(self.packages).readable)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How it ended. `stopped`: cpu, wall, starved, memory or output if we killed it, or what the caller's own look said
    of its processes; forbidden if the filter did.

    records: statuses and values of this run's nonce; none at all if anything else is in the reply, which `malformed`
    says. errors: where output is cut alone. cut: output or errors are not all that it wrote.
    """

    output: bytes
    exit_code: int
    stopped: str = ""
    records: tuple[tuple[str, object], ...] = ()
    malformed: bool = False
    errors: bytes = b""
    cut: bool = False


class Runnable(Protocol):
    """What runs: a `Program`, a `repository.Suite` or a `shell.Command`."""

    def request_fields(self) -> dict[str, object]:
        """Return its part of a process's request."""

    def readable(self) -> dict[str, int]:
        """Return what it may read in addition to what every program may, by its real path, and the rights on it."""


Look = Callable[[frozenset[int]], str]


def run(
    program: Runnable,
    *,
    stdin: bytes,
    limits: Limits,
    confined: profile.Confinement | None = None,
    start: spawn.Start = spawn.fresh,
    num_kills: Callable[[], int] = shortage.num_kills_here,
    run_delay_s: Callable[[], float] = procfs.own_run_delay_s,
    poll_s: float = POLL_S,
    look: Look = lambda _: "",
) -> Run:
    """Return how the program, or the tests of a repository, ended on this input. Raises CannotRunError.

    num_kills: how often the kernel has ended a process here for want of memory. run_delay_s: how long this thread has
    been ready to run and did not. poll_s: seconds between two looks at the CPU, memory and processes of the tree. look:
    called at each of them with the processes; says what is exceeded, an empty text for nothing.
    """
    nonce = secrets.token_hex(16)
    if confined is not None:
        confined = dataclasses.replace(confined, readable={**confined.readable, **program.readable()})
    (request, theirs), reply = socket.socketpair(), spawn.Pipe()
    with request, theirs, reply, contextlib.ExitStack() as stack:
        process = stack.enter_context(contextlib.closing(start(theirs.fileno(), reply.writer.fileno())))
        # Nothing of the program exists before its request: whatever is there now is not an orphan of its.
        before, cpu_before_s = procfs.children(os.getpid()) - {process.pid}, _reaped_cpu_s()
        kills_before = num_kills()
        theirs.close()
        reply.writer.close()
        # Closed after the end: a program whose requests fail would continue.
        delay = AnswerDelay(run_delay_s)
        watch = stack.enter_context(contextlib.closing(_Watch(process, limits, before, confined, delay, poll_s, look)))
        try:
            orders = None if confined is None else confined.orders(pid=process.pid, may_fork=limits.may_fork)
            payload = _request(program, nonce, limits, orders, process.parent)
            stopped = watch.follow(request=request, feeds={request: payload, process.stdin: stdin}, reply=reply.reader)
        finally:
            _end(process, before)
    if process.lost:
        raise CannotRunError("the interpreter that a program's process was forked from has ended")
    reply_of_run = records.read(bytes(watch.reply), nonce)
    if not reply_of_run.entered:
        # Nothing of the program has run: whatever happened is not its doing.
        last_line = bytes(watch.errors).decode("utf-8", errors="backslashreplace").strip().rpartition("\n")[2]
        raise CannotRunError(
            f"a program's process did not confine itself (exit code {process.returncode}): {last_line}"
        )
    if not stopped and _used_up(process, limits, process.cpu_s + _reaped_cpu_s() - cpu_before_s):
        stopped = "cpu"
    if not stopped and process.returncode == -signal.SIGKILL and num_kills() > kills_before:
        # The first to go when the pod is short of memory is the program.
        stopped = "memory"
    if not stopped and confined and process.returncode == -signal.SIGSYS:
        stopped = "forbidden"
    assert process.returncode is not None, "it was waited for"
    return Run(
        output=bytes(watch.output),
        exit_code=process.returncode,
        stopped=stopped,
        records=reply_of_run.items,
        malformed=reply_of_run.malformed,
        errors=bytes(watch.errors) if limits.is_cut else b"",
        cut=watch.cut,
    )


def _used_up(process: spawn.Started, limits: Limits, cpu_s: float) -> bool:
    """Return whether the CPU limit was met after the last look: the kernel saw it, or the program just ended."""
    return process.returncode == -signal.SIGXCPU or cpu_s >= limits.cpu_s


def is_starved(waits_s: Sequence[float], *, cpu_s: float, wall_s: float) -> bool:
    """Return whether a machine that gave no time is to blame for a wall cap: over a quarter of it went by in waiting.

    waits_s: for a processor, of the process of the tree that waited longest, of its runner while the tree waited for
    its answers, and of the interpreter that forks it. Each continues while the others do not, so that they add up. What
    the tree itself used is taken off each, as the most that it can have made anyone wait: no program can have it so.
    """
    return sum(max(0.0, wait_s - cpu_s) for wait_s in waits_s) > wall_s / 4


def _reaped_cpu_s() -> float:
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def _request(program: Runnable, nonce: str, limits: Limits, orders: dict[str, object] | None, parent: int) -> bytes:
    return json.dumps(
        {
            **program.request_fields(),
            "nonce": nonce,
            "parent": parent,
            "cpu_s": math.ceil(limits.cpu_s),
            "memory_bytes": limits.memory_bytes,
            "file_bytes": limits.file_bytes,
            "confinement": orders,
        }
    ).encode()


class _Watch:
    """Feeds and drains one process, and answers what it asks for, until it ends or a limit is met."""

    def __init__(
        self,
        process: spawn.Started,
        limits: Limits,
        before: frozenset[int],
        confined: profile.Confinement | None,
        answer_delay: AnswerDelay,
        poll_s: float,
        look: Look,
    ) -> None:
        self._process, self._limits, self._before, self._look = process, limits, before, look
        self._confined, self._answer_delay, self._poll_s = confined, answer_delay, poll_s
        self._gate: Gate | None = None
        self._retry = False
        self._started_s = time.monotonic()
        self._parent_waited_s = procfs.run_delay_s(process.parent)
        self._cpu_s, self._next_look_s = 0.0, 0.0
        self.output, self.errors, self.reply = bytearray(), bytearray(), bytearray()
        self.cut = False

    def close(self) -> None:
        if self._gate is not None:
            self._gate.close()

    def follow(self, *, request: socket.socket, feeds: dict[_Feed, bytes], reply: IO[bytes]) -> str:
        """Return what was exceeded, an empty text if the program ended by itself. Raises CannotRunError."""
        sinks: dict[_Feed, bytearray] = {
            self._process.stdout: self.output,
            self._process.stderr: self.errors,
            reply: self.reply,
        }
        left = {feed: memoryview(data) for feed, data in feeds.items()}
        with selectors.DefaultSelector() as selector:
            for feed in feeds:
                os.set_blocking(feed.fileno(), False)
                selector.register(feed, selectors.EVENT_WRITE, data=feed)
            for sink in sinks:
                selector.register(sink, selectors.EVENT_READ, data=sink)
            # Without it an end would be noticed one poll late: streams close a moment before.
            selector.register(self._process, selectors.EVENT_READ)
            while True:
                for key, _ in self._select(selector):
                    if key.data is None:
                        if self._noticed(selector, key) is Room.NONE:
                            return "memory"
                        continue
                    stream: _Feed = key.data
                    done = _fed(stream, left) if stream in left else _drained(stream, sinks[stream])
                    if not done:
                        continue
                    selector.unregister(stream)
                    if stream is not request:
                        stream.close()
                        continue
                    request.shutdown(socket.SHUT_WR)
                    selector.register(request, selectors.EVENT_READ)
                    # What its runner took until here is not the program's time.
                    self._started_s = time.monotonic()
                if self._limits.is_cut:
                    self._cut()
                elif max(map(len, sinks.values())) > self._limits.output_bytes:
                    return "output"
                ended = self._process.poll() is not None
                # What was written before the end is still in the pipes: the end is believed once they are empty.
                if ended and not self._readable(selector):
                    return ""
                exceeded = self._exceeded(ended=ended)
                if exceeded:
                    return exceeded

    def _cut(self) -> None:
        for sink in (self.output, self.errors):
            if len(sink) > self._limits.output_bytes:
                del sink[self._limits.output_bytes :]
                self.cut = True

    def _select(self, selector: selectors.DefaultSelector) -> list[tuple[selectors.SelectorKey, int]]:
        if self._gate is not None and not self._retry:
            self._answer_delay.begin()
        events = selector.select(_RETRY_S if self._retry else self._poll_s)
        if self._retry and self._gate is not None:
            self._retry = False
            # What it holds back does not make it readable.
            events.append((selector.register(self._gate, selectors.EVENT_READ), selectors.EVENT_READ))
        return events

    def _noticed(self, selector: selectors.DefaultSelector, key: selectors.SelectorKey) -> Room:
        """Act on what is not a stream; return whether there is room for what the program asks for, if it does."""
        what = key.fileobj
        if isinstance(what, Gate) and what.is_waiting():
            room = what.answer()
            if room is Room.FREE:
                self._answer_delay.answered()
            elif room is Room.UNCLEAR:
                selector.unregister(what)
                self._retry = True
            return room
        # Each of them has one piece of news: the end of the process, the end of all that could ask, the listener.
        selector.unregister(what)
        if isinstance(what, socket.socket):
            self._gate = self._gate_of(what)
            if self._gate is not None:
                selector.register(self._gate, selectors.EVENT_READ)
        return Room.FREE

    def _gate_of(self, request: socket.socket) -> Gate | None:
        """Return the gate that the process hands over once it is confined; None if it has none, or ended before."""
        try:
            descriptor = notifications.handed_over(request)
        except OSError as error:
            raise CannotRunError(f"a program's requests cannot be answered: {error}") from error
        if descriptor is None or self._confined is None:
            return None
        listener = notifications.Listener(
            descriptor, request_bytes=self._confined.request_bytes, answer_bytes=self._confined.answer_bytes
        )
        return Gate(
            listener,
            forks=ForkGate(session=self._process.pid, most=MAX_PROCESSES),
            paths=PathView(self._confined.readable, self._confined.architecture, self._confined.writable),
        )

    @staticmethod
    def _readable(selector: selectors.DefaultSelector) -> bool:
        return any(key.data is not None and events & selectors.EVENT_READ for key, events in selector.select(0))

    def _exceeded(self, *, ended: bool) -> str:
        # A runner that slept through the end of a program has only itself to blame, or the machine.
        if not ended and time.monotonic() - self._started_s > self._limits.wall_s:
            return self._over_wall()
        if time.monotonic() < self._next_look_s:
            return ""
        members = self._members()
        if len(members) > MAX_PROCESSES:
            return "memory"
        usage = [procfs.usage(pid) for pid in members]
        # From the end of a look on: a program that writes byte by byte must not keep its runner looking.
        self._next_look_s = time.monotonic() + self._poll_s
        self._cpu_s = max(self._cpu_s, sum(process.cpu_s for process in usage))
        if self._cpu_s >= self._limits.cpu_s:
            return "cpu"
        if sum(process.num_threads for process in usage) > MAX_PROCESSES:
            return "memory"
        if sum(process.resident_bytes for process in usage) > self._limits.memory_bytes:
            return "memory"
        return self._look(frozenset(members))

    def _over_wall(self) -> str:
        members = self._members()
        cpu_s = max(self._cpu_s, sum(procfs.usage(pid).cpu_s for pid in members))
        waits_s = [self._answer_delay.total_s, max(map(procfs.run_delay_s, members), default=0.0)]
        if self._process.parent != os.getpid():
            # It forks the program and reports its end, and does nothing in between.
            waits_s.append(procfs.run_delay_s(self._process.parent) - self._parent_waited_s)
        return "starved" if is_starved(waits_s, cpu_s=cpu_s, wall_s=self._limits.wall_s) else "wall"

    def _members(self) -> set[int]:
        """Return the processes of the run, orphans included, which are children of this process; not all if too many.

        Those that ended count, too, until they are waited for: what they used is the run's.
        """
        members: set[int] = set()
        for root in {self._process.pid} | (procfs.children(os.getpid()) - self._before):
            members |= procfs.tree(root, ended=True, at_most=MAX_PROCESSES + 1)
            if len(members) > MAX_PROCESSES:
                break
        return members


def _fed(stream: _Feed, left: dict[_Feed, memoryview]) -> bool:
    """Write what fits; return whether nothing is left, or no one reads."""
    try:
        written = os.write(stream.fileno(), left[stream][:_CHUNK]) if left[stream] else 0
    except BlockingIOError:
        return False
    except (BrokenPipeError, ConnectionResetError):
        return True
    left[stream] = left[stream][written:]
    return not left[stream]


def _drained(stream: _Feed, sink: bytearray) -> bool:
    """Read what is there; return whether it was the end."""
    data = os.read(stream.fileno(), _CHUNK)
    sink += data
    return not data


def _group(pid: int) -> int:
    """Return a process's group; 0 if it is gone."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def _end(process: spawn.Started, before: frozenset[int]) -> None:
    """Kill and reap the whole tree. Orphans are ours to reap where this process adopts them (`confine.adopt`)."""
    deadline_s = time.monotonic() + _REAP_S
    num_empty = 0
    while num_empty < _EMPTY_SCANS:
        orphans = procfs.children(os.getpid()) - before - {process.pid}
        if process.returncode is None or any(_group(pid) == process.pid for pid in orphans):
            # All at once, and before anyone is looked for: processes that fork outrun anyone who ends them one by one.
            # While someone is in the group, its number is no one else's.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        members = _some_members((process.pid, *orphans))
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in orphans:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        process.wait(POLL_S)
        num_empty = 0 if members or orphans or process.returncode is None else num_empty + 1
        if time.monotonic() > deadline_s and (members or orphans or process.returncode is None):
            raise CannotRunError(f"{len(members | orphans)} processes or more of a program would not end")


def _some_members(roots: Sequence[int]) -> frozenset[int]:
    """Return processes below these that have not ended; the others are found the next time."""
    members: frozenset[int] = frozenset()
    for root in roots:
        members |= procfs.tree(root, at_most=MAX_PROCESSES)
        if len(members) >= MAX_PROCESSES:
            break
    return members
