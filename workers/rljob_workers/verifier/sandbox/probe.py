"""Does confinement hold here? What a program of the policy's would try, tried once through the real launcher.

A layer is not believed because the kernel has it: each attempt is made, and must fail. Run by every grading worker that
is to run programs, before it says that it is ready, and by `preflight.py`.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from rljob_api import errors
from rljob_workers.verifier.sandbox import programs
from rljob_workers.verifier.sandbox.confinement import profile
from rljob_workers.verifier.sandbox.processes import spawn

# By the layer that must stop it: what is tried, as a statement; `parent` is the process that runs programs. Numbers are
# those of the attack rows in docs/coverage/sandbox.md. What is Landlock's alone is not tried where there is none.
_LANDLOCK = "landlock"
ATTEMPTS: Mapping[str, Mapping[str, str]] = {
    _LANDLOCK: {
        "A-22 list a folder": "os.listdir('/')",
        "A-22 read a file": "open('/etc/passwd').read(1)",
        "A-23 read /proc of itself": "open('/proc/self/environ').read(1)",
        "A-23 read /proc of its runner": "open(f'/proc/{parent}/environ').read(1)",
    },
    # The filter's to stop where Landlock is too old, or not there.
    "landlock or seccomp": {
        "A-33 write a file": "path = f'/tmp/.rljob-probe-{os.getpid()}'; open(path, 'x').close(); os.remove(path)",
        "A-42 signal its runner": "os.kill(parent, 0)",
    },
    "seccomp": {
        "A-28 start a process": "os.fork() or os._exit(0)",
        "A-31 memory that no limit counts": "os.memfd_create('probe')",
        "A-43 limits of its runner": "resource.prlimit(parent, resource.RLIMIT_NOFILE)",
        "A-44 priority": "os.nice(1)",
        "A-48 a TCP socket": "socket.socket()",
        "A-48 a UDP socket": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
        "A-49 a Unix socket": "socket.socket(socket.AF_UNIX)",
        "A-49 a pair that sends to any path": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
    },
    "capabilities": {"A-45 raise its own limits": "resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))"},
}


class Excess(NamedTuple):
    """A program that takes too much, by which limit it must be stopped (`programs.Run.stopped`), and before it has
    written more than so many bytes; and how many seconds lie between two looks at it.
    """

    source: str
    stopped_by: frozenset[str]
    most_output: int | None = None
    poll_s: float = programs.POLL_S


# What must be stopped, by what it takes too much of.
EXCESSES: Mapping[str, Excess] = {
    # It asks for four times what is allowed, and never for more: where nothing holds it, it must not harm the machine.
    # Each process but the first writes a byte, so that one too many shows even if all are ended a moment later. Looks
    # are rare: what must stop it is that the kernel asks, and not that someone happened to look in time. Where no
    # filter can ask, looks are all there is: then nothing but their finding it counts.
    "A-28 processes": Excess(
        "import os, signal\nfor _ in range(8):\n    if os.fork() == 0:\n        os.write(1, b'.')\nsignal.pause()",
        frozenset({"memory"}),
        most_output=programs.MAX_PROCESSES - 1,
        poll_s=1.0,
    ),
    "A-30 memory": Excess(
        "import os, signal\nfor _ in range(4):\n    if os.fork() == 0:\n        kept = b'x' * (40 << 20)\n"
        "        signal.pause()\nsignal.pause()",
        frozenset({"memory"}),
    ),
    "A-32 output": Excess("while True:\n    print('x' * 10000)", frozenset({"output"})),
    # A machine that gives it no time ends it by the wall cap.
    "A-35 CPU": Excess("while True:\n    pass", frozenset({"cpu", "wall", "starved"})),
}
_TIGHT = programs.Limits(cpu_s=0.2, wall_s=30.0, memory_bytes=128 << 20, output_bytes=64 << 10, may_fork=True)
_LIMITS = programs.Limits(cpu_s=10.0, wall_s=60.0, memory_bytes=512 << 20, output_bytes=64 << 10)
_SOURCE = """
import os, resource, socket
def reached(statements):
    done = []
    for statement in statements:
        try:
            exec(statement, {"os": os, "resource": resource, "socket": socket, "parent": os.getppid()})
        except (OSError, ValueError):
            continue
        done.append(statement)
    return done
"""


def holes(
    confined: profile.Confinement | None,
    *,
    start: spawn.Start = spawn.fresh,
    packages: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """Return `layer: attempt` for each attempt that succeeded. Raises SandboxError if none could be made.

    packages: that the program may import.
    """
    layers = set(ATTEMPTS) - ({_LANDLOCK} if confined is not None and not confined.abi else set())
    statements = {
        statement: f"{layer}: {name}"
        for layer, tries in ATTEMPTS.items()
        if layer in layers
        for name, statement in tries.items()
    }
    program = programs.Program(
        source=_SOURCE, compat=False, fn_name="reached", arguments=[list(statements)], packages=packages
    )
    try:
        ended = programs.run(program, stdin=b"", limits=_LIMITS, confined=confined, start=start)
    except spawn.CannotRunError as error:
        raise errors.SandboxError(f"isolation {profile.LEVEL} cannot be applied: {error}") from error
    match ended.records:
        case (("returned", list(done)),):
            return tuple(statements[str(statement)] for statement in done)
    raise errors.SandboxError(
        f"isolation {profile.LEVEL}: its test ended without a result"
        f" (exit code {ended.exit_code}, {ended.stopped or 'not stopped'})"
    )


def unlimited(confined: profile.Confinement) -> tuple[str, ...]:
    """Return each excess that its own limit did not stop, or not in time. Raises SandboxError if none can be tried."""
    problems = []
    for name, (source, stopped_by, most_output, poll_s) in EXCESSES.items():
        # Only the last one is about CPU: the others may take what they need to get there.
        limits = _TIGHT if "cpu" in stopped_by else dataclasses.replace(_TIGHT, cpu_s=_LIMITS.cpu_s)
        program = programs.Program(source=source, compat=False)
        if not confined.asks:
            most_output, poll_s = None, programs.POLL_S
        try:
            ended = programs.run(program, stdin=b"", limits=limits, confined=confined, poll_s=poll_s)
        except spawn.CannotRunError as error:
            raise errors.SandboxError(f"isolation {profile.LEVEL} cannot be applied: {error}") from error
        is_late = most_output is not None and len(ended.output) > most_output
        if ended.stopped not in stopped_by or is_late:
            problems.append(name)
    return tuple(problems)


def verified(*, runtime_class: str = "") -> profile.Confinement:
    """Return this machine's confinement, tested. Raises SandboxError that names the layer that does not hold.

    runtime_class: as for `profile.of_this_machine`.
    """
    confined = profile.of_this_machine(runtime_class=runtime_class)
    verify(confined)
    return confined


def verify(confined: profile.Confinement, *, start: spawn.Start = spawn.fresh, packages: tuple[str, ...] = ()) -> None:
    """Raise SandboxError that names the layer that does not hold. packages: as for `holes`."""
    breaches = holes(confined, start=start, packages=packages)
    if breaches:
        raise errors.SandboxError(f"isolation {profile.LEVEL} does not hold: {'; '.join(breaches)} succeeded")
