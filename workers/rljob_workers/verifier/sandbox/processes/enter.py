"""The launcher: what a candidate's process does to itself before candidate code starts. Irrevocable, in this order.

end with the parent -> limits -> first to go when memory is short -> no descriptor but those it needs -> no
capabilities, no new privileges -> Landlock -> system-call filter, last, because it forbids what the others need -> the
filter's listener to the runner, and closed here: anyone who holds it answers what the program asks for. The process
group is its own since it was started. Whether there is Landlock and a listener is the orders' to say: one that was
ordered and is not there is an error. Standard library alone: `candidate.py` loads this file by path, before anything
else.
"""

# `socket` is built on it, and takes as long to import as all the rest of an interpreter takes to start.
import _socket
import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_NEW_LISTENER = 1, 8
_CAPABILITY_VERSION_3 = 0x20080522
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_LANDLOCK_RULE_PATH_BENEATH = 1
_STACK_BYTES = 8 << 20
_MAX_FILES = 64
_MOST_EXPENDABLE = "1000"


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


class _FilterProgram(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def enter(request: "dict[str, object]", *, request_fd: int, reply_fd: int) -> None:
    """Take the limits of a request, and its confinement if there is one. Raises OSError if the kernel refuses any.

    request_fd: a socket, over which the runner is sent the filter's listener; closed here. reply_fd: stays open.
    """
    # First: from here on nothing of this outlives the runner that watches it.
    die_with(int(request["parent"]))  # type: ignore[call-overload]
    limit(
        cpu_s=int(request["cpu_s"]),  # type: ignore[call-overload]
        memory_bytes=int(request["memory_bytes"]),  # type: ignore[call-overload]
        file_bytes=int(request["file_bytes"]),  # type: ignore[call-overload]
    )
    # Before the confinement, under which no file can be opened for writing.
    _go_first()
    _close_all_but(request_fd, reply_fd)
    runner = _socket.socket(fileno=request_fd)
    orders = request["confinement"]
    if orders is not None:
        assert isinstance(orders, dict)
        confine(orders, runner)
    else:
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    runner.close()


def die_with(parent: int) -> None:
    """Have the kernel SIGKILL this process when its parent ends. Raises OSError if it already has."""
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        raise ProcessLookupError(f"parent {parent} has ended")


def limit(*, cpu_s: int, memory_bytes: int, file_bytes: int = 0) -> None:
    """Take the limits of one run, each at most what is left of it already."""
    for kind, soft, hard in (
        (resource.RLIMIT_CPU, cpu_s, cpu_s + 1),
        (resource.RLIMIT_AS, memory_bytes, memory_bytes),
        (resource.RLIMIT_FSIZE, file_bytes, file_bytes),
        (resource.RLIMIT_CORE, 0, 0),
        # Programs that recurse raise it themselves; the address space bounds it.
        (resource.RLIMIT_STACK, _STACK_BYTES, memory_bytes),
        (resource.RLIMIT_NOFILE, _MAX_FILES, _MAX_FILES),
    ):
        most = resource.getrlimit(kind)[1]
        bounded = hard if most == resource.RLIM_INFINITY else min(hard, most)
        resource.setrlimit(kind, (min(soft, bounded), bounded))
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)


def confine(orders: "dict[str, object]", runner: _socket.socket) -> None:
    """Apply what `confinement/profile.py` worked out. Raises OSError if the kernel refuses a part."""
    _drop_capabilities()
    # Without capabilities the kernel takes Landlock rules and a filter only from a process that can gain no privileges.
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    readable = orders["readable"]
    assert isinstance(readable, dict)
    if orders["ruleset"] is not None:
        _landlock(bytes.fromhex(str(orders["ruleset"])), readable)
    # The filter last: from then on calls are refused or wait for the runner's answer, those that open files as well.
    asks = orders["asks"] is True
    listener = _filter(bytes.fromhex(str(orders["filter"])), int(str(orders["seccomp"])), asks=asks)
    if not asks:
        return
    rights = listener.to_bytes(ctypes.sizeof(ctypes.c_int), sys.byteorder)
    try:
        runner.sendmsg([b"l"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
    finally:
        # While this process held it, its own questions would wait for ever.
        os.close(listener)


def _close_all_but(*descriptors: int) -> None:
    """Close every other descriptor above the standard three."""
    first = 3
    for descriptor in sorted(descriptors):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, 1 << 16)


def _go_first() -> None:
    """When a whole pod is short of memory, the kernel ends the program and not its runner."""
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(_MOST_EXPENDABLE)


def _drop_capabilities() -> None:
    """Where the runner is root, the program would otherwise lift its own limits."""
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    _checked("capset", _libc().capset(ctypes.byref(header), (ctypes.c_uint32 * 6)()))


def _landlock(attributes: bytes, readable: "dict[str, int]") -> None:
    libc = _libc()
    ruleset = _checked(
        "landlock_create_ruleset",
        libc.syscall(_LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0)),
    )
    for path, rights in readable.items():
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = _PathBeneath(rights, folder)
        added = libc.syscall(
            _LANDLOCK_ADD_RULE, ruleset, _LANDLOCK_RULE_PATH_BENEATH, ctypes.byref(rule), ctypes.c_uint32(0)
        )
        _checked(f"landlock_add_rule of {path}", added)
        os.close(folder)
    _checked("landlock_restrict_self", libc.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, ctypes.c_uint32(0)))
    os.close(ruleset)


def _filter(instructions: bytes, seccomp: int, *, asks: bool = True) -> int:
    """Install the filter; return its listener, 0 for one that does not ask. seccomp: the number of the system call."""
    program = _FilterProgram(len(instructions) // 8, instructions)
    operation = ctypes.c_uint(_SECCOMP_SET_MODE_FILTER)
    flags = ctypes.c_uint(_SECCOMP_FILTER_FLAG_NEW_LISTENER if asks else 0)
    return _checked("seccomp", _libc().syscall(ctypes.c_long(seccomp), operation, flags, ctypes.byref(program)))


def _prctl(option: int, value: int) -> None:
    _checked(f"prctl {option}", _libc().prctl(option, value, 0, 0, 0))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(what: str, returned: int) -> int:
    if returned < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return returned
