"""What an execution can do to its surroundings, seen from inside: real programs, started by the launcher both ways.

Properties P1 to P9 of docs/design/sandbox.md; docs/coverage/sandbox.md says which other tests show them. Where a
program is not confined the same attempts succeed, so that none fails for another reason.
"""

import contextlib
import json
import os
import pathlib
import secrets
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence

import pytest

from rljob_workers.verifier import service
from rljob_workers.verifier.sandbox import programs
from rljob_workers.verifier.sandbox.confinement import profile
from rljob_workers.verifier.sandbox.processes import spawn

LIMITS = programs.Limits(cpu_s=20.0, wall_s=120.0, memory_bytes=512 << 20, output_bytes=256 << 10)
# Answers with the statements that succeeded.
TRIES = """
import ctypes, fcntl, os, signal, socket
libc = ctypes.CDLL(None, use_errno=True)

def checked(returned):
    if returned < 0:
        raise OSError(ctypes.get_errno(), "")

def reached(statements):
    done = []
    for statement in statements:
        try:
            exec(statement, globals())
        except Exception:
            continue
        done.append(statement)
    return done
"""


def reached(
    statements: Sequence[str], confined: profile.Confinement | None, start: spawn.Start = spawn.fresh
) -> list[str]:
    """Return the statements that a program succeeded with."""
    program = programs.Program(source=TRIES, compat=False, fn_name="reached", arguments=[list(statements)])
    ended = programs.run(program, stdin=b"", limits=LIMITS, confined=confined, start=start)
    ((status, done),) = ended.records
    assert status == "returned"
    assert isinstance(done, list)
    return [str(statement) for statement in done]


@contextlib.contextmanager
def listening(family: int, kind: int, address: object) -> Iterator[socket.socket]:
    with socket.socket(family, kind) as listener:
        listener.bind(address)
        if kind == socket.SOCK_STREAM:
            listener.listen()
        listener.setblocking(False)
        yield listener


def is_silent(listener: socket.socket) -> bool:
    """Return whether no one has connected or sent anything."""
    try:
        if listener.type == socket.SOCK_STREAM:
            listener.accept()[0].close()
        else:
            listener.recv(1)
    except BlockingIOError:
        return True
    return False


@pytest.mark.covers("sandbox P1")
@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM], ids=["stream", "datagram"])
@pytest.mark.parametrize("where", ["loopback", "abstract", "path"])
def test_p1_program_reaches_no_listener_on_its_own_machine(
    where: str, kind: int, confined: profile.Confinement, start: spawn.Start, tmp_path: pathlib.Path
) -> None:
    family = socket.AF_INET if where == "loopback" else socket.AF_UNIX
    address = {
        "loopback": ("127.0.0.1", 0), "abstract": f"\0rljob-{secrets.token_hex(8)}", "path": str(tmp_path / "socket"),
    }[where]  # fmt: skip
    with listening(family, kind, address) as listener:
        name = listener.getsockname() if where == "loopback" else address
        statement = f"""
with socket.socket({int(family)}, {int(kind)}) as caller:
    caller.connect({name!r})
    caller.send(b"x")
"""
        pairs = f"socket.socketpair()[0].sendto(b'x', {name!r})"
        assert reached([statement, pairs], confined, start) == []
        assert is_silent(listener)
        assert reached([statement], None) == [statement]
        assert not is_silent(listener)


@pytest.fixture
def neighbour() -> Iterator["subprocess.Popen[bytes]"]:
    """Return a process of the same user that waits, as another execution would."""
    command = [*spawn.INTERPRETER, "-c", "import signal\nprint('on', flush=True)\nsignal.pause()"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"on\n"
            yield process
        finally:
            process.kill()


@pytest.mark.covers("sandbox P2")
def test_p2_program_reads_nothing_of_its_service_its_answers_or_others(
    confined: profile.Confinement,
    start: spawn.Start,
    neighbour: "subprocess.Popen[bytes]",
    tmp_path: pathlib.Path,
) -> None:
    answers = tmp_path / "answers.json"
    answers.write_text("42")
    files = [str(answers), str(service.__file__), str(programs.__file__), "/etc/passwd"]
    for process in ("self", os.getpid(), neighbour.pid):
        files += [f"/proc/{process}/{name}" for name in ("cmdline", "maps", "environ", "status", "task")]
    folders = [str(tmp_path), str(pathlib.Path(service.__file__).parent), "/", "/proc", f"/proc/{os.getpid()}/fd"]
    statements = [f"open({path!r}, 'rb').read()" for path in files if not path.endswith("task")]
    statements += [f"os.listdir({path!r})" for path in [*folders, *(path for path in files if path.endswith("task"))]]
    statements.append(f"os.readlink('/proc/{os.getpid()}/cwd')")
    assert reached(statements, confined, start) == []
    assert reached(statements, None) == statements


@pytest.mark.covers("sandbox P4")
def test_p4_program_signals_nobody_outside(
    confined: profile.Confinement, start: spawn.Start, neighbour: "subprocess.Popen[bytes]"
) -> None:
    pid = neighbour.pid
    kills = [f"os.kill({pid}, {{0}})", f"os.killpg({pid}, {{0}})", f"checked(libc.sigqueue({pid}, {{0}}, None))"]
    harmless = [kill.format(0) for kill in kills]
    # The kernel would send SIGIO, which ends who does not handle it, when there is something to read.
    by_input = f"""
ours, theirs = socket.socketpair()
fcntl.fcntl(ours, fcntl.F_SETOWN, {pid})
fcntl.fcntl(ours, fcntl.F_SETFL, fcntl.fcntl(ours, fcntl.F_GETFL) | os.O_ASYNC)
theirs.send(b"x")
"""
    denied = [*harmless, *(kill.format(9) for kill in kills)]
    assert set(reached([*denied, by_input], confined, start)) <= {by_input}
    assert neighbour.poll() is None
    assert reached(harmless, None) == harmless
    assert reached([by_input], None) == [by_input]
    assert neighbour.wait(60) == -signal.SIGIO, "the attempt does what it says where nothing stops it"


SURROUNDINGS = """
import json, os, sys
held = {}
for descriptor in range(256):
    try:
        os.fstat(descriptor)
        held[descriptor] = os.read(descriptor, 1 << 16).decode() if descriptor else ""
    except OSError as error:
        if error.errno != 9 or descriptor in (1, 2):
            held[descriptor] = "not readable"
print(json.dumps({"held": held, "environment": dict(os.environ), "arguments": sys.argv}))
"""


@pytest.mark.covers("sandbox P9")
def test_p9_program_inherits_no_secret_no_descriptor_and_a_fixed_environment(
    confined: profile.Confinement,
    start: spawn.Start,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
) -> None:
    secret = f"secret-{secrets.token_hex(8)}"
    (tmp_path / "key").write_text(secret)
    monkeypatch.setenv("HF_TOKEN", secret)
    with (tmp_path / "key").open() as key:
        os.set_inheritable(key.fileno(), True)
        program = programs.Program(source=SURROUNDINGS, compat=False)
        ended = programs.run(program, stdin=b"", limits=LIMITS, confined=confined, start=start)
    assert secret.encode() not in ended.output
    found = json.loads(ended.output)
    assert found["environment"] == dict(spawn.ENVIRONMENT)
    assert set(found["held"]) == {"0", "1", "2"}
    assert found["arguments"] == [""]
