"""Confined processes on this kernel: what they try and may not do, with Landlock's scopes and without them."""

import dataclasses
import errno
import os
import pathlib
import platform
import sys
from collections.abc import Callable

import pytest

from rljob_api import errors
from rljob_workers.verifier.sandbox import programs
from rljob_workers.verifier.sandbox.confinement import landlock, notifications, profile, syscalls
from rljob_workers.verifier.sandbox.processes import spawn

LIMITS = programs.Limits(cpu_s=10.0, wall_s=60.0, memory_bytes=512 << 20, output_bytes=64 << 10)
# Each statement runs alone; the answer is the name of its error, or "reached".
BATTERY = """
import ctypes, errno, os, resource, socket, subprocess, sys, threading
libc = ctypes.CDLL(None, use_errno=True)

def checked(returned):
    if returned < 0:
        raise OSError(ctypes.get_errno(), "")

def tried(secret, statements):
    found = {}
    for statement in statements:
        space = {**globals(), "secret": secret, "folder": os.path.dirname(secret), "parent": os.getppid()}
        try:
            exec(statement, space)
        except OSError as error:
            found[statement] = errno.errorcode[error.errno]
        except BaseException as error:
            found[statement] = type(error).__name__
        else:
            found[statement] = "reached"
    return found
"""
# What does not happen, and the error that says so.
DENIED = {
    # P2: no file but the interpreter's and its libraries'.
    "open(secret).read()": "ENOENT",
    "os.listdir(folder)": "ENOENT",
    "os.listdir('.')": "EACCES",
    "open('/etc/passwd').read()": "ENOENT",
    "open('/proc/self/environ').read()": "ENOENT",
    "open('/proc/self/maps').read()": "ENOENT",
    "os.listdir('/proc/self/fd')": "ENOENT",
    "open(f'/proc/{parent}/cmdline').read()": "ENOENT",
    "open(f'/proc/{parent}/mem').read()": "ENOENT",
    "open('/proc/1/environ').read()": "ENOENT",
    "os.listdir('/sys')": "ENOENT",
    "open('/dev/zero').read(1)": "ENOENT",
    # Nor that there is one: its size, its times, where a link leads.
    "os.stat(secret)": "ENOENT",
    "os.lstat(folder)": "ENOENT",
    "os.stat('secret', dir_fd=os.open('/usr', os.O_RDONLY))": "EACCES",
    "os.readlink('/proc/self/exe')": "ENOENT",
    "os.statvfs(folder)": "ENOENT",
    "os.chdir(folder)": "ENOENT",
    "assert os.access(secret, os.F_OK)": "AssertionError",
    "os.open(secret, os.O_PATH)": "EPERM",
    "os.getxattr(secret, 'user.x')": "EPERM",
    "os.listxattr(secret)": "EPERM",
    "checked(libc.inotify_init1(0))": "EPERM",
    # P3: no writes, attributes included.
    "open(folder + '/new', 'w')": "ENOENT",
    "open(secret, 'a')": "ENOENT",
    "os.mkdir(folder + '/new')": "EPERM",
    "os.remove(secret)": "EPERM",
    "os.rename(secret, secret + '2')": "EPERM",
    "os.link(secret, secret + '2')": "EPERM",
    "os.symlink('/', folder + '/new')": "EPERM",
    "os.mkfifo(folder + '/new')": "EPERM",
    "os.truncate(secret, 0)": "EPERM",
    "os.chmod(secret, 0o777)": "EPERM",
    "os.chown(secret, os.getuid(), os.getgid())": "EPERM",
    "os.utime(secret)": "EPERM",
    "os.setxattr(secret, 'user.x', b'')": "EPERM",
    # FS_IOC_SETFLAGS of a file that it may read.
    "import fcntl; fcntl.ioctl(open(os.__file__), 0x40086602, b'0000')": "EPERM",
    # P1: no network of any family, and no way to a socket of someone else's.
    "socket.socket()": "EPERM",
    "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)": "EPERM",
    "socket.socket(socket.AF_UNIX)": "EPERM",
    "socket.socket(socket.AF_NETLINK)": "EPERM",
    "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)": "EPERM",
    "socket.socketpair()[0].connect(folder + '/none')": "EPERM",
    # P4: nothing of another process.
    "os.kill(parent, 0)": "EPERM",
    "os.kill(1, 0)": "EPERM",
    "os.pidfd_open(parent)": "EPERM",
    "resource.prlimit(parent, resource.RLIMIT_NOFILE)": "EPERM",
    "os.setpriority(os.PRIO_PROCESS, parent, 5)": "EPERM",
    "os.nice(1)": "EPERM",
    "os.sched_setaffinity(parent, [0])": "EPERM",
    "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))": "EPERM",
    # Its own limits go down alone, also where the runner is root.
    "resource.setrlimit(resource.RLIMIT_NOFILE, (1000, 1000))": "ValueError",
    # P5, P6: memory and processes that no limit counts.
    "os.memfd_create('x')": "EPERM",
    "checked(libc.shmget(0, 4096, 0o1600))": "EPERM",
    "checked(libc.semget(0, 1, 0o1600))": "EPERM",
    "os.fork()": "EPERM",
    "subprocess.run([sys.executable, '-c', ''])": "EPERM",
    "import fcntl; fcntl.fcntl(os.pipe()[0], 1031, 1 << 20)": "EPERM",
    # P7, P8.
    "os.setsid()": "EPERM",
    "os.setpgid(0, 0)": "EPERM",
    "checked(libc.prctl(1, 0, 0, 0, 0))": "EPERM",
    "checked(libc.prctl(4, 0, 0, 0, 0))": "EPERM",
    "os.execv('/bin/sh', ['sh', '-c', 'exit 0'])": "ENOENT",
}
GRANTED = (
    "import decimal, sqlite3, zlib, asyncio; asyncio.run(asyncio.sleep(0))",
    "open(os.__file__).read()",
    "assert os.stat(os.__file__).st_size == len(open(os.__file__, 'rb').read())",
    "assert os.path.realpath(os.__file__) == os.__file__",
    "os.listdir(os.path.dirname(os.__file__))",
    "assert os.path.exists('/') and os.path.isdir('/usr')",
    # Names of what is open.
    "assert open('/dev/stdin').read() == open('/proc/self/fd/0').read() == open('/dev/fd/0').read() == ''",
    "assert os.path.exists('/dev/stdout')",
    "assert os.stat('/dev/stdin').st_ino == os.fstat(0).st_ino",
    "thread = threading.Thread(target=print); thread.start(); thread.join()",
    "socket.socketpair()",
    "os.kill(os.getpid(), 0)",
    "resource.setrlimit(resource.RLIMIT_CPU, (5, 5))",
    "resource.getrlimit(resource.RLIMIT_AS)",
    "os.sched_getaffinity(0)",
    "os.urandom(8)",
    "bytearray(1 << 26)",
)

# What the path view does for a filter that asks: with Landlock alone, the same is denied, and another error says so.
VIEWED = {statement for statement, error in DENIED.items() if error == "ENOENT"} - {"os.readlink('/proc/self/exe')"}
SEEN = {
    "os.stat(secret)": "reached",
    "os.lstat(folder)": "reached",
    "os.statvfs(folder)": "reached",
    "os.chdir(folder)": "reached",
    "assert os.access(secret, os.F_OK)": "reached",
    "os.open(secret, os.O_PATH)": "reached",
    "os.readlink('/proc/self/exe')": "reached",
}
LANDLOCKED = {**DENIED, **dict.fromkeys(VIEWED, "EACCES"), **SEEN}
# What Landlock denies that a filter can deny, too: it sees flags and no paths.
MAKES = ("open(folder + '/new', 'w')", "open(secret, 'a')")
FILTERED = {
    **{statement: error for statement, error in DENIED.items() if error == "EPERM" and statement not in SEEN},
    **dict.fromkeys(MAKES, "EPERM"),
}

Try = Callable[[list[str]], dict[str, str]]


def run(
    program: programs.Program,
    confined: profile.Confinement | None,
    start: spawn.Start = spawn.fresh,
    **changes: object,
) -> programs.Run:
    limits = dataclasses.replace(LIMITS, **changes)  # type: ignore[arg-type]  # a test's own fields
    return programs.run(program, stdin=b"", limits=limits, confined=confined, start=start)


def tried(
    confined: profile.Confinement,
    secret: pathlib.Path,
    statements: list[str],
    start: spawn.Start,
    *,
    may_fork: bool = False,
) -> dict[str, str]:
    program = programs.Program(source=BATTERY, compat=False, fn_name="tried", arguments=[str(secret), statements])
    ((status, value),) = run(program, confined, start, may_fork=may_fork).records
    assert status == "returned"
    assert isinstance(value, dict)
    return {str(statement): str(result) for statement, result in value["dict"]}


@pytest.fixture
def secret(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "secret"
    path.write_text("42")
    return path


# 5: the last version without scopes, where the filter must refuse signals.
@pytest.mark.covers(
    "graders 6.6", "sandbox A-67", "sandbox P1", "sandbox P2", "sandbox P3", "sandbox P4", "sandbox P5", "sandbox S-3"
)
@pytest.mark.parametrize("abi", ["of this kernel", 5, 1])
def test_confined_program_can_do_nothing_outside_its_own_process(
    confined: profile.Confinement, abi: int | str, secret: pathlib.Path, start: spawn.Start
) -> None:
    if isinstance(abi, int):
        confined = dataclasses.replace(confined, abi=min(abi, confined.abi))
    assert tried(confined, secret, list(DENIED), start) == DENIED
    assert secret.read_text() == "42"
    assert [path.name for path in secret.parent.iterdir()] == ["secret"]


def test_landlock_alone_lets_nothing_be_opened_or_run(
    confined: profile.Confinement, secret: pathlib.Path, start: spawn.Start
) -> None:
    alone = dataclasses.replace(confined, request_bytes=0, answer_bytes=0)
    assert tried(alone, secret, list(LANDLOCKED), start) == LANDLOCKED
    assert secret.read_text() == "42"


def test_confined_program_has_what_innocent_programs_use(
    confined: profile.Confinement, secret: pathlib.Path, start: spawn.Start
) -> None:
    granted = [*GRANTED, "open('/dev/stderr', 'w').close()"]
    assert tried(confined, secret, granted, start) == dict.fromkeys(granted, "reached")


@pytest.mark.covers("sandbox S-2")
def test_without_landlock_the_filter_denies_everything_but_reading(
    confined: profile.Confinement, secret: pathlib.Path, start: spawn.Start
) -> None:
    reads = {"open(secret).read()": "reached", "os.listdir(folder)": "reached"}
    alone = dataclasses.replace(confined, abi=0, request_bytes=0, answer_bytes=0)
    assert tried(alone, secret, [*FILTERED, *reads], start) == FILTERED | reads
    assert secret.read_text() == "42"
    assert [path.name for path in secret.parent.iterdir()] == ["secret"]


def test_program_whose_filter_cannot_ask_has_what_innocent_programs_use(
    confined: profile.Confinement, secret: pathlib.Path, start: spawn.Start
) -> None:
    alone = dataclasses.replace(confined, abi=0, request_bytes=0, answer_bytes=0)
    assert tried(alone, secret, list(GRANTED), start) == dict.fromkeys(GRANTED, "reached")
    again = "assert subprocess.run([sys.executable, '-I', '-S', '-c', 'import json']).returncode == 0"
    assert tried(alone, secret, [again], start, may_fork=True) == {again: "reached"}
    assert tried(alone, secret, ["os.fork()"], start) == {"os.fork()": "EPERM"}


def test_program_with_processes_may_start_the_interpreter_and_nothing_else(
    confined: profile.Confinement, secret: pathlib.Path, start: spawn.Start
) -> None:
    again = "assert subprocess.run([sys.executable, '-I', '-S', '-c', 'import json']).returncode == 0"
    shell = "subprocess.run(['/bin/sh', '-c', 'exit 0'])"
    reads = "subprocess.run([sys.executable, '-I', '-S', '-c', f'open({secret!r})'], check=True)"
    found = tried(confined, secret, [again, shell, reads], start, may_fork=True)
    assert found == {again: "reached", shell: "ENOENT", reads: "CalledProcessError"}


@pytest.mark.covers("sandbox P4", "sandbox P7")
@pytest.mark.parametrize(
    "call", ["ptrace", "process_vm_readv", "unshare", "mount", "setns", "bpf", "perf_event_open", "keyctl", "chroot"]
)
def test_call_without_innocent_use_ends_the_program(
    confined: profile.Confinement, call: str, start: spawn.Start
) -> None:
    source = f"import ctypes\nctypes.CDLL(None).syscall({syscalls.number(call, confined.architecture)}, 0, 0, 0, 0, 0)"
    ended = run(programs.Program(source=f"{source}\nprint('on')", compat=False), confined, start)
    assert (ended.stopped, ended.output) == ("forbidden", b"")


def test_without_confinement_the_same_program_goes_on() -> None:
    ended = run(programs.Program(source="import os\nprint(len(os.listdir('/')) > 0)", compat=False), None)
    assert (ended.stopped, ended.output) == ("", b"True\n")


@pytest.mark.covers("sandbox S-3")
@pytest.mark.parametrize("broken", ["ruleset", "readable", "filter"])
def test_process_that_cannot_be_confined_runs_nothing_and_nobody_is_to_blame(
    confined: profile.Confinement, broken: str, tmp_path: pathlib.Path, start: spawn.Start
) -> None:
    class Broken(profile.Confinement):
        def orders(self, *, pid: int, may_fork: bool) -> dict[str, object]:
            wrong = {"ruleset": "00" * 8, "readable": {str(tmp_path / "none"): 4}, "filter": "ff" * 8}
            return {**super().orders(pid=pid, may_fork=may_fork), broken: wrong[broken]}

    fields = {field.name: getattr(confined, field.name) for field in dataclasses.fields(confined)}
    with pytest.raises(spawn.CannotRunError, match="did not confine itself"):
        run(programs.Program(source="print('on')", compat=False), Broken(**fields), start)


@pytest.mark.covers("sandbox S-6")
@pytest.mark.parametrize("noise", ["", "\\n", '{"nonce": "0", "status": "entered", "value": null}\\n'])
def test_program_cannot_pretend_that_it_was_never_confined(
    confined: profile.Confinement, noise: str, start: spawn.Start
) -> None:
    source = f"""
import os
def answer():
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, '''{noise}'''.encode())
        except OSError:
            pass
    os._exit(0)
"""
    ended = run(programs.Program(source=source, compat=False, fn_name="answer"), confined, start)
    assert (ended.records, ended.exit_code) == ((), 0)


@pytest.mark.covers("sandbox 4")
@pytest.mark.parametrize(("kills", "stopped"), [([3, 4], "memory"), ([3, 3], "")])
def test_kill_by_nobody_of_ours_is_for_memory_where_the_kernel_counted_one(
    confined: profile.Confinement, kills: list[int], stopped: str
) -> None:
    program = programs.Program(source="import os\nos.kill(os.getpid(), 9)", compat=False)
    counts = iter(kills)
    ended = programs.run(program, stdin=b"", limits=LIMITS, confined=confined, num_kills=lambda: next(counts))
    assert (ended.stopped, ended.exit_code) == (stopped, -9)


def test_machine_without_landlock_is_refused_and_the_layer_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise OSError(38, os.strerror(38))

    monkeypatch.setattr(landlock, "version", refused)
    with pytest.raises(errors.SandboxError, match="layer landlock is missing: Function not implemented"):
        profile.of_this_machine()


def test_machine_whose_filters_cannot_ask_is_refused_and_the_layer_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: syscalls.Architecture) -> tuple[int, int]:
        raise OSError(22, os.strerror(22))

    monkeypatch.setattr(landlock, "version", lambda: 7)
    monkeypatch.setattr(notifications, "sizes", refused)
    with pytest.raises(errors.SandboxError, match="layer seccomp is missing: no user notification: Invalid argument"):
        profile.of_this_machine()


def absent(number: int) -> Callable[..., tuple[int, int]]:
    def asked(*_: object) -> tuple[int, int]:
        raise OSError(number, os.strerror(number))

    return asked


def test_runtime_class_excuses_a_kernel_without_landlock_and_one_whose_filters_cannot_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notifications, "sizes", lambda _: (80, 24))
    monkeypatch.setattr(landlock, "version", absent(errno.ENOSYS))
    found = profile.of_this_machine(runtime_class="gvisor")
    assert (found.abi, found.asks) == (0, True)
    monkeypatch.setattr(notifications, "sizes", absent(errno.EINVAL))
    found = profile.of_this_machine(runtime_class="gvisor")
    assert (found.abi, found.asks) == (0, False)


@pytest.mark.covers("sandbox S-2")
def test_what_a_kernel_has_is_used_under_a_runtime_class_too(confined: profile.Confinement) -> None:
    assert profile.of_this_machine(runtime_class="kata") == confined


@pytest.mark.covers("sandbox S-2")
@pytest.mark.parametrize(("asked", "layer"), [(landlock, "landlock"), (notifications, "seccomp")])
def test_layer_that_is_there_and_refused_is_missing_under_a_runtime_class_too(
    asked: object, layer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landlock, "version", lambda: 7)
    monkeypatch.setattr(asked, "version" if asked is landlock else "sizes", absent(errno.EPERM))
    with pytest.raises(errors.SandboxError, match=f"layer {layer} is missing: .*Operation not permitted"):
        profile.of_this_machine(runtime_class="gvisor")


@pytest.mark.covers("sandbox S-2")
def test_machine_without_a_table_of_calls_is_refused_and_the_layer_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "version", lambda: 7)
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(errors.SandboxError, match="layer seccomp is missing: .* x86_64, aarch64, not for riscv64"):
        profile.of_this_machine()


def test_interpreter_of_a_run_is_a_real_path(confined: profile.Confinement) -> None:
    assert not confined.interpreter.is_symlink()
    assert confined.interpreter == pathlib.Path(sys.executable).resolve()
