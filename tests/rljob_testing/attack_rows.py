"""Attacks of programs on their verifier: rows A-nn of docs/design/sandbox.md#s-8, as data.

Each program tries something; where it succeeds it answers right, so that a hole shows as a reward. `test_attacks.py`
runs them through the service; docs/coverage/sandbox.md says which rows have none.
"""

import dataclasses
import pathlib
import platform
import sys
from collections.abc import Mapping, Sequence

from rljob_api.enums import VerifyOutcome as O  # short in the table
from rljob_workers.verifier.sandbox.confinement import syscalls

ADD: Mapping[str, object] = {"fn_name": "add", "inputs": ["1\n2"], "outputs": ["3"]}
SUM: Mapping[str, object] = {"inputs": ["1 2"], "outputs": ["3"]}
GOLD = "gold-5cbd"
_ARCHITECTURE = syscalls.ARCHITECTURES.get(platform.machine())


@dataclasses.dataclass(frozen=True, slots=True)
class Attack:
    """One program. outcomes: those that the reference admits. may_fork: as a grader that grants processes runs it."""

    id: str
    what: str
    program: str
    outcomes: frozenset[O]
    tests: Mapping[str, object]
    may_fork: bool

    @property
    def reward(self) -> float:
        """Return what it must be worth."""
        return 1.0 if self.outcomes == {O.PASS} else 0.0


def _attack(
    id_: str, what: str, program: str, *outcomes: O, tests: Mapping[str, object] = ADD, may_fork: bool = False
) -> Attack:
    return Attack(id_, what, program.strip(), frozenset(outcomes), tests, may_fork)


def _tries(id_: str, what: str, *statements: str, outcomes: Sequence[O] = (O.FAIL,), may_fork: bool = False) -> Attack:
    """Return a program that answers right if one of the statements succeeds."""
    return _attack(id_, what, _TRIES.replace("STATEMENTS", repr(list(statements))), *outcomes, may_fork=may_fork)


def _call(name: str, *arguments: int) -> str:
    """Return a statement that makes a system call by number."""
    number = None if _ARCHITECTURE is None else syscalls.number(name, _ARCHITECTURE)
    return f"checked(libc.syscall({', '.join(map(str, (-1 if number is None else number, *arguments)))}))"


_TRIES = """
import ctypes, fcntl, mmap, os, resource, signal, socket, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
parent = os.getppid()

def checked(returned):
    if returned < 0:
        raise OSError(ctypes.get_errno(), "")

def add(a, b):
    for statement in STATEMENTS:
        try:
            exec(statement, globals())
        except Exception:
            continue
        return a + b
    return a - b
"""
_FORGE = """
import os
def forge():
    for descriptor in range(256):
        try:
            os.write(descriptor, b'{"nonce": "0", "status": "returned", "value": 3}\\n')
        except OSError:
            pass
"""
# Two paths take turns in one buffer: what was looked at must be what is answered.
_SWAP = """
import ctypes, os, threading
libc = ctypes.CDLL(None)
shown, hidden = os.__file__.encode(), b"/etc/passwd"
path, found = ctypes.create_string_buffer(max(len(shown), len(hidden)) + 1), ctypes.create_string_buffer(256)
usual, stop = os.stat(shown).st_ino, threading.Event()

def swap():
    while not stop.is_set():
        ctypes.memmove(path, shown + bytes(1), len(shown) + 1)
        ctypes.memmove(path, hidden + bytes(1), len(hidden) + 1)

def add(a, b):
    threading.Thread(target=swap, daemon=True).start()
    learnt = False
    for _ in range(3000):
        if libc.syscall(NEWFSTATAT, -100, path, found, 0) == 0:
            learnt |= int.from_bytes(found.raw[8:16], "little") != usual
    stop.set()
    return a + b if learnt else a - b
"""
_SECRETS = (
    "/etc/rljob", "/etc/rljob/config.json", "/etc/rljob-tls", "/etc/rljob-tls/tls.key", "/etc/rljob-code",
    "/var/run/secrets/kubernetes.io/serviceaccount/token", "/etc/passwd", "/etc/shadow", "/proc/1/stat",
    "/proc/self/stat", "/dev/shm", "/sys",
    # A folder above the packages that a program may import is there for it: a checkout may be below /tmp.
    *(() if pathlib.PurePath(sys.prefix).is_relative_to("/tmp") else ("/tmp",)),
)  # fmt: skip
_NEW_USER, _NEW_NET, _SIGCHLD = 0x10000000, 0x40000000, 17
_FLOOD = "import sys\nline = b'x' * (1 << 16)\nwhile True:\n"

VERDICT = (
    _attack("A-01", "exit before returning", "import sys\ndef add(a, b):\n    sys.exit(0)", O.FORCED_EXIT),
    _attack("A-02", "exit without clean-up", "import os\ndef add(a, b):\n    os._exit(0)", O.FORCED_EXIT),
    _attack("A-03", "SystemExit", "def add(a, b):\n    raise SystemExit", O.FORCED_EXIT),
    _attack("A-03", "KeyboardInterrupt", "def add(a, b):\n    raise KeyboardInterrupt", O.FORCED_EXIT),
    _attack(
        "A-03", "its own base exception",
        "class Stop(BaseException):\n    pass\ndef add(a, b):\n    raise Stop", O.FORCED_EXIT,
    ),
    _attack("A-04", "kill itself", "import os\ndef add(a, b):\n    os.kill(os.getpid(), 9)", O.FORCED_EXIT),
    _attack("A-04", "crash", "import ctypes\ndef add(a, b):\n    return ctypes.string_at(0)", O.FORCED_EXIT),
    _attack(
        "A-05", "forge a record at exit",
        f"import atexit\n{_FORGE}\natexit.register(forge)\ndef add(a, b):\n    return 4", O.FORCED_EXIT, O.FAIL,
    ),
    _attack(
        "A-05", "forge a record in a finaliser",
        f"{_FORGE}\nclass Last:\n    def __del__(self):\n        forge()\nlast = Last()\ndef add(a, b):\n    return 4",
        O.FORCED_EXIT, O.FAIL,
    ),
    _attack(
        "A-05", "forge records in a daemon thread",
        f"import threading\n{_FORGE}\ndef add(a, b):\n    threading.Thread(target=forge, daemon=True).start()\n"
        "    return 4",
        O.FORCED_EXIT, O.FAIL,
    ),
    _attack("A-06", "right output, then exit", "import sys\nprint(3)\nsys.exit(0)", O.PASS, tests=SUM),
    _attack("A-06", "right output, then _exit", "import os\nprint(3, flush=True)\nos._exit(0)", O.PASS, tests=SUM),
    _attack("A-07", "right output, exit code 1", "print(3)\nraise SystemExit(1)", O.FAIL, tests=SUM),
    _attack(
        "A-08", "become another program that exits 0",
        "import os, sys\ndef add(a, b):\n    os.execv(sys.executable, ['python', '-I', '-S', '-c', ''])", O.FORCED_EXIT,
    ),
    _attack(
        "A-09", "equal to everything",
        "class Same:\n    def __eq__(self, other):\n        return True\ndef add(a, b):\n    return Same()", O.FAIL,
    ),
    *(
        _attack(
            "A-09", f"a subclass of {kind} equal to everything",
            f"class Same({kind}):\n    def __eq__(self, other):\n        return True\n    __hash__ = None\n"
            "def add(a, b):\n    return Same()", O.FAIL,
        )
        for kind in ("int", "str", "list")
    ),
    *(
        _attack(
            "A-10", f"return {value}", f"def add(a, b):\n    return float('{value}')", O.FAIL,
            tests={**ADD, "outputs": ["3.0"]},
        )
        for value in ("nan", "inf", "1e400")
    ),
    _attack(
        "A-11", "forge records on every descriptor", f"{_FORGE}\ndef add(a, b):\n    forge()\n    return 4", O.FAIL
    ),
    _attack(
        "A-12", "find the nonce and send records for all cases",
        "import gc\ndef add(a, b):\n    for found in gc.get_objects():\n        if type(found).__name__ == 'Reply':\n"
        "            for _ in range(2):\n                found.send('returned', 3)\n    return 3",
        O.FAIL, tests={**ADD, "inputs": ["1\n2", "2\n2"], "outputs": ["3", "4"]},
    ),
    _attack(
        "A-13", "answer the first case, then the same again",
        "kept = []\ndef add(a, b):\n    kept.append(kept[0] if kept else 3)\n    return kept[-1]",
        O.FAIL, tests={**ADD, "inputs": ["1\n2", "2\n2"], "outputs": ["3", "4"]},
    ),
    *(
        _attack("A-14", f"patch {what}", f"import builtins, json, sys\n{patch}\ndef add(a, b):\n    return 4", O.FAIL)
        for what, patch in {
            "json.dumps": "json.dumps = lambda *a, **k: '{\"status\": \"returned\", \"value\": 3}'",
            "builtins": "builtins.type = lambda value: int",
            "print and stdout": "builtins.print = sys.stdout.write = lambda *a, **k: 3",
        }.items()
    ),
    _attack("A-21", "rely on a wildcard import", "numbers = [1, 2, 3]\nnothing = None", O.FAIL),
    _attack(
        "A-24", "look for the answer in environment, descriptors, frames and objects",
        """
import gc, os, sys
texts = [*os.environ.values(), *sys.argv]
for descriptor in range(3, 64):
    try:
        texts.append(os.read(descriptor, 1 << 16).decode())
    except OSError:
        pass
frame = sys._getframe()
while frame:
    texts.append(repr({**frame.f_locals, **frame.f_globals}))
    frame = frame.f_back
texts += [found for found in gc.get_objects() if isinstance(found, str)]
texts += [repr(found) for found in gc.get_objects() if isinstance(found, (dict, list, tuple))]
begin = 'go' + 'ld-'
for text in texts:
    if begin in text:
        print(text[text.index(begin):][:9])
        break
""",
        O.FAIL, tests={"inputs": ["1"], "outputs": [GOLD]},
    ),
    _attack(
        "A-46", "recurse without end",
        "import resource, sys\nsys.setrecursionlimit(10**9)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 26, 1 << 26))\ndef add(a, b):\n    return add(a, b)",
        O.FAIL, O.FORCED_EXIT,
    ),
    _attack(
        "A-46", "a result nested without end",
        "def add(a, b):\n    value = []\n    for _ in range(200000):\n        value = [value]\n    return value",
        O.FAIL, O.FORCED_EXIT,
    ),
    _attack(
        "A-56", "output of no encoding",
        "import sys\nsys.stdout.buffer.write(b'\\xff\\x00\\x1b[2J\\xe2\\x80\\xae3' + b'\\n' * 1000)", O.FAIL, tests=SUM,
    ),
    _attack(
        "A-57", "hard-code the visible tests", "print({'1 2': 3}.get(input(), 0))", O.FAIL,
        tests={"inputs": ["1 2", "3 4"], "outputs": ["3", "7"], "num_visible": 1},
    ),
    _attack("A-58", "print every plausible answer", "for n in range(100):\n    print(n)", O.FAIL, tests=SUM),
)  # fmt: skip

DENIED = (
    _tries(
        "A-15", "pre-create results wherever writable",
        *(f"open({path!r}, 'w')" for path in ("result.json", "/tmp/result.json", "/dev/shm/result", "/var/tmp/reward")),
        "open(os.path.join(os.path.dirname(sys.executable), 'result'), 'w')",
    ),
    _tries("A-22", "look for expected outputs", *(f"os.listdir({path!r})" for path in ("/", ".", "/tmp", "/etc"))),
    _tries(
        "A-23", "read /proc",
        *(
            f"open(f'/proc/{process}/{file}', 'rb').read(1)"
            for process in ("self", "{parent}", "1")
            for file in ("environ", "cmdline", "maps", "mem")
        ),
        "os.listdir('/proc/self/fd')", "os.listdir(f'/proc/{parent}/fd')",
    ),
    _tries("A-25", "trace its runner", "checked(libc.ptrace(16, parent, 0, 0))", outcomes=(O.FORBIDDEN,)),
    _tries(
        "A-25", "read its runner's memory", _call("process_vm_readv", 0, 0, 0, 0, 0, 0), outcomes=(O.FORBIDDEN,)
    ),
    _tries("A-25", "take its runner's descriptors", "os.pidfd_open(parent)", _call("pidfd_getfd", 3, 3, 0)),
    _tries(
        "A-27", "stat for sizes of answer or secret files",
        *(
            statement
            for path in _SECRETS
            for statement in (
                f"os.stat({path!r})", f"os.lstat({path!r})", f"os.readlink({path!r})", f"os.statvfs({path!r})",
                f"assert os.access({path!r}, os.F_OK)", f"os.open({path!r}, os.O_PATH)", f"os.chdir({path!r})",
                f"os.listxattr({path!r})",
            )
        ),
        "os.stat(f'/proc/{parent}')", "os.stat(f'/proc/{parent}/exe')", "os.stat('../etc/passwd')",
        "os.stat(os.path.join(os.path.dirname(os.__file__), '../../../../../../etc/passwd'))",
        *(
            f"try:\n  {how}({path!r})\nexcept OSError as error:\n  if error.errno == 13: existing = True\n  else: raise"
            for path in ("/etc/passwd", "/etc/rljob/config.json", "/proc/1/environ")
            for how in ("open", "os.mkdir", "os.remove", "os.listdir", "os.rmdir")
        ),
    ),
    _attack(
        "A-27", "stat of a path that is swapped while it is looked at",
        _SWAP.replace("NEWFSTATAT", str(syscalls.number("newfstatat", _ARCHITECTURE) if _ARCHITECTURE else -1)), O.FAIL,
    ),
    _tries("A-28", "fork where it is not granted", "os.fork()", "subprocess.run([sys.executable, '-c', ''])"),
    _tries(
        "A-31", "memory that no limit counts", "os.memfd_create('x')", "checked(libc.shmget(0, 1 << 28, 0o1600))",
        "open('/dev/shm/x', 'w')", "mmap.mmap(-1, 1 << 30)", "fcntl.fcntl(os.pipe()[1], 1031, 1 << 20)",
    ),
    _tries(
        "A-33", "fill a disk", "open('/tmp/full', 'wb')", "os.makedirs('/tmp/a/b/c')",
        "os.truncate(os.open('/tmp/sparse', os.O_RDWR | os.O_CREAT), 1 << 40)",
    ),
    _tries("A-34", "open descriptors until failure", "[os.dup(0) for _ in range(100)]"),
    _tries("A-42", "signal its runner", "os.kill(parent, 9)", "os.killpg(os.getpgid(parent), 9)", "os.kill(1, 0)"),
    _tries(
        "A-43", "lower its runner's limits",
        *(f"resource.prlimit(parent, resource.RLIMIT_{kind}, (1, 1))" for kind in ("CPU", "NOFILE", "AS", "FSIZE")),
    ),
    _tries(
        "A-44", "priority and processors of its runner", "os.setpriority(os.PRIO_PROCESS, parent, 19)",
        "os.sched_setaffinity(parent, [0])", "os.sched_setscheduler(parent, os.SCHED_IDLE, os.sched_param(0))",
        _call("ioprio_set", 1, 0, 0),
    ),
    _tries(
        "A-45", "lift its own limits", "resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))",
        "resource.setrlimit(resource.RLIMIT_CPU, (-1, -1))", "open('/proc/self/oom_score_adj', 'w').write('-1000')",
    ),
    _tries(
        "A-48", "the network",
        "socket.create_connection(('127.0.0.1', 6443), 1)", "socket.create_connection(('169.254.169.254', 80), 1)",
        *(
            f"socket.socket(socket.{family}, socket.{kind})"
            for family, kind in (
                ("AF_INET", "SOCK_STREAM"), ("AF_INET", "SOCK_DGRAM"), ("AF_INET6", "SOCK_STREAM"),
                ("AF_INET", "SOCK_RAW"), ("AF_PACKET", "SOCK_RAW"), ("AF_NETLINK", "SOCK_RAW"),
                ("AF_VSOCK", "SOCK_STREAM"),
            )
        ),
    ),
    _tries(
        "A-50", "tokens and sockets of the node",
        *(
            f"os.{action}({path!r})"
            for path in ("/var/run/secrets/kubernetes.io/serviceaccount", "/run/containerd", "/var/lib/kubelet")
            for action in ("listdir", "scandir")
        ),
    ),
    *(
        _tries("A-51", f"new namespaces by {how}", statement, outcomes=outcomes, may_fork=True)
        for how, statement, outcomes in (
            ("unshare", f"checked(libc.unshare({_NEW_USER}))", (O.FORBIDDEN,)),
            ("mount", "checked(libc.mount(b'/', b'/', 0, 4096, 0))", (O.FORBIDDEN,)),
            ("chroot", "os.chroot('/')", (O.FORBIDDEN,)),
            ("setns", "checked(libc.setns(0, 0))", (O.FORBIDDEN,)),
            ("clone", _call("clone", _NEW_USER | _NEW_NET | _SIGCHLD, 0, 0, 0, 0), (O.FAIL,)),
            ("clone3", _call("clone3", 0, 0), (O.FAIL,)),
        )
    ),
    *(
        _tries("A-52", name, _call(name, 0, 0, 0, 0, 0, 0), outcomes=(outcome,))
        for name, outcome in (
            ("io_uring_setup", O.FAIL), ("bpf", O.FORBIDDEN), ("perf_event_open", O.FORBIDDEN),
            ("userfaultfd", O.FORBIDDEN), ("keyctl", O.FORBIDDEN), ("kexec_load", O.FORBIDDEN),
            ("init_module", O.FORBIDDEN),
        )
    ),
    _tries(
        "A-53", "set-uid programs",
        *(f"subprocess.run([{path!r}], check=True)" for path in ("/bin/su", "/usr/bin/su", "/usr/bin/passwd")),
        may_fork=True,
    ),
    _attack("A-53", "the helper for core dumps", "import os\ndef add(a, b):\n    os.abort()", O.FORCED_EXIT),
    _tries(
        "A-54", "links out of its folder", "os.symlink('/etc', 'link')", "os.link('/etc/passwd', 'link')",
        "open('../../etc/passwd')", "os.rename('.', '../moved')",
    ),
)  # fmt: skip

LIMITS = (
    _attack(
        "A-28", "fork bomb where processes are granted",
        "import os\ndef add(a, b):\n    while True:\n        os.fork()", O.OOM, may_fork=True,
    ),
    _attack(
        "A-28", "fork bomb that the program leaves behind",
        "import os\nprint(4, flush=True)\nif os.fork() == 0:\n    while True:\n        os.fork()", O.FAIL, O.OOM,
        tests=SUM, may_fork=True,
    ),
    _attack(
        "A-29", "threads with small stacks",
        "import signal, threading\nthreading.stack_size(1 << 16)\ndef add(a, b):\n    for _ in range(3000):\n"
        "        threading.Thread(target=threading.Event().wait, daemon=True).start()\n    signal.pause()",
        O.OOM,
    ),
    _attack(
        "A-30", "much memory at once", "def add(a, b):\n    return len(b'x' * (1 << 30))", O.FAIL, O.OOM,
    ),
    _attack(
        "A-30", "memory that grows",
        "kept = []\ndef add(a, b):\n    while True:\n        kept.append(b'x' * (1 << 20))", O.FAIL, O.OOM,
    ),
    _attack(
        "A-30", "memory of seven children",
        "import os, signal\ndef add(a, b):\n    for _ in range(7):\n        if os.fork() == 0:\n"
        "            kept = b'x' * (64 << 20)\n            signal.pause()\n    signal.pause()",
        O.OOM, may_fork=True,
    ),
    _attack("A-32", "flood of output", f"{_FLOOD}    sys.stdout.buffer.write(line)", O.OUTPUT_FLOOD, tests=SUM),
    _attack("A-32", "flood of errors", f"{_FLOOD}    sys.stderr.buffer.write(line)", O.OUTPUT_FLOOD, tests=SUM),
    _attack(
        "A-32", "flood of both in turn",
        f"{_FLOOD}    sys.stdout.buffer.write(line)\n    sys.stderr.buffer.write(line)", O.OUTPUT_FLOOD, tests=SUM,
    ),
    _attack("A-35", "busy loop", "def add(a, b):\n    while True:\n        pass", O.TIMEOUT_CPU),
    _attack("A-36", "sleep", "import time\ndef add(a, b):\n    time.sleep(10**6)", O.TIMEOUT_WALL),
    _attack(
        "A-36", "read for ever",
        "import os\nends = os.pipe()\ndef add(a, b):\n    os.read(ends[0], 1)", O.TIMEOUT_WALL,
    ),
    _attack(
        "A-37", "deaf to signals",
        "import signal\nfor number in (signal.SIGTERM, signal.SIGXCPU, signal.SIGALRM):\n"
        "    signal.signal(number, signal.SIG_IGN)\ndef add(a, b):\n    while True:\n        pass",
        O.TIMEOUT_CPU,
    ),
    _attack("A-38", "a huge power", "def add(a, b):\n    return 9 ** (9 ** 9)", O.TIMEOUT_CPU),
    _attack(
        "A-38", "a pattern that backtracks",
        "import re\ndef add(a, b):\n    return re.match(r'(a+)+$', 'a' * 64 + 'b')", O.TIMEOUT_CPU,
    ),
    _attack(
        "A-39", "CPU spread over children",
        "import os, signal\ndef add(a, b):\n    for _ in range(4):\n        if os.fork() == 0:\n"
        "            while True:\n                pass\n    signal.pause()",
        O.TIMEOUT_CPU, may_fork=True,
    ),
    _attack(
        "A-39", "CPU spread over orphans that end",
        "import os\ndef add(a, b):\n    while True:\n        reader, writer = os.pipe()\n        child = os.fork()\n"
        "        if child == 0:\n            if os.fork() == 0:\n                sum(range(10**7))\n"
        "            os._exit(0)\n        os.close(writer)\n        os.waitpid(child, 0)\n        os.read(reader, 1)\n"
        "        os.close(reader)",
        O.TIMEOUT_CPU, may_fork=True,
    ),
    _attack(
        "A-40", "right output, and a child that stays",
        "import os, signal\nprint(3, flush=True)\nif os.fork() == 0:\n    try:\n        os.setsid()\n"
        "    except OSError:\n        pass\n    if os.fork() == 0:\n        os.close(1)\n        signal.pause()\n"
        "    os._exit(0)",
        O.PASS, tests=SUM, may_fork=True,
    ),
    _attack(
        "A-42", "stop its whole group", "import os, signal\ndef add(a, b):\n    os.killpg(0, signal.SIGSTOP)",
        O.TIMEOUT_WALL,
    ),
    _attack(
        "A-47", "false clocks",
        "import signal, time\nfor name in ('time', 'monotonic', 'process_time', 'perf_counter'):\n"
        "    setattr(time, name, lambda: 0.0)\nsignal.alarm = signal.setitimer = lambda *a: 0\n"
        "def add(a, b):\n    while True:\n        pass",
        O.TIMEOUT_CPU,
    ),
)  # fmt: skip

# getpid of the x32 interface, and of the 32-bit one: mov eax, 20; int 0x80; ret.
_OF_32_BITS = """
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex('b814000000cd80c3'))
def add(a, b):
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    return 3 if ctypes.CFUNCTYPE(ctypes.c_int)(address)() > 0 else 4
"""
OF_X86_64 = (
    _tries("A-55", "x32 system calls", "checked(libc.syscall(0x40000000 + 39))", outcomes=(O.FORBIDDEN,)),
    # A kernel without the 32-bit interface ends the program itself.
    _attack("A-55", "32-bit system calls", _OF_32_BITS, O.FORBIDDEN, O.FORCED_EXIT),
)

ATTACKS = (*VERDICT, *DENIED, *LIMITS, *(OF_X86_64 if platform.machine() == "x86_64" else ()))
