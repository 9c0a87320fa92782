"""Which system calls a program of the policy's may not make: the readable form of the filter. Pure.

No innocent program makes the KILLED ones. The REFUSED ones fail with EPERM, as they do where a container forbids them,
and the program may continue. What starts a process or a thread, or names a path, waits for the answer of anyone who
holds the filter's listener (`requests/gate.py`). What no rule names is allowed: rules on files, TCP and signals are
Landlock's. Where a kernel has no Landlock, the filter refuses writing and signals itself; reading it cannot refuse, for
it sees no path.
"""

import dataclasses
import enum
from collections.abc import Iterator

from rljob_workers.verifier.sandbox.confinement import landlock, path_calls


class Action(enum.Enum):
    """What happens to a call."""

    KILL = "kill"
    REFUSE = "refuse"
    MISSING = "missing"
    UNSUPPORTED = "unsupported"
    ASK = "ask"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Whether the low 32 bits of an argument, masked, are a value; or are not. The kernel's types there are 32 wide."""

    argument: int
    value: int
    equal: bool
    mask: int = 0xFFFFFFFF


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """An action on a call whose arguments meet all conditions."""

    call: str
    action: Action
    conditions: tuple[Condition, ...] = ()


# By what they are good for.
_KILLED = {
    "memory and control of other processes": "ptrace process_vm_readv process_vm_writev kcmp",
    "the kernel's own machinery": (
        "bpf perf_event_open userfaultfd kexec_load kexec_file_load init_module finit_module delete_module iopl ioperm"
        " reboot swapon swapoff acct quotactl quotactl_fd lookup_dcookie nfsservctl"
    ),
    "namespaces, mounts, and ways around paths": (
        "mount umount2 pivot_root chroot setns unshare open_tree move_mount fsopen fsconfig fsmount fspick"
        " mount_setattr open_by_handle_at name_to_handle_at fanotify_init fanotify_mark"
    ),
    "keys of the user's session": "keyctl add_key request_key",
}
_REFUSED = {
    "the network; a pair of connected sockets stays": "socket connect bind listen accept accept4",
    "memory that no limit counts and that outlives a process": (
        "memfd_create memfd_secret shmget shmat shmctl shmdt semget semop semctl semtimedop msgget msgsnd msgrcv"
        " msgctl mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr"
    ),
    "a way out of the process group, and with it of its end": "setsid setpgid",
    "priority, processors and memory of others": (
        "setpriority ioprio_set sched_setscheduler sched_setparam sched_setattr sched_setaffinity process_madvise"
        " process_mrelease migrate_pages move_pages pidfd_open pidfd_getfd pidfd_send_signal"
    ),
    "work that the kernel does on its own threads": "io_uring_setup io_uring_enter io_uring_register io_setup",
    "what Landlock does not cover: attributes of this user's files, and notifications about them": (
        "getxattr lgetxattr listxattr llistxattr chmod fchmod fchmodat chown fchown lchown fchownat setxattr lsetxattr"
        " fsetxattr removexattr lremovexattr fremovexattr utime utimes utimensat futimesat truncate inotify_init"
        " inotify_init1 inotify_add_watch"
    ),
    "making, removing and renaming files, which Landlock refuses with another error where the path exists": (
        "creat mkdir mkdirat mknod mknodat link linkat symlink symlinkat unlink unlinkat rmdir rename renameat"
        " renameat2"
    ),
    "the machine's clock, name, logs and disks": (
        "settimeofday clock_settime clock_adjtime adjtimex sethostname setdomainname syslog vhangup sync syncfs"
        " modify_ldt seccomp"
    ),
}
KILLED = tuple(call for calls in _KILLED.values() for call in calls.split())
REFUSED = tuple(call for calls in _REFUSED.values() for call in calls.split())

# Tools that list and copy files do without attributes where there are none, and complain where they are refused.
_ATTRIBUTES = (
    *("getxattr", "lgetxattr", "listxattr", "llistxattr", "setxattr", "lsetxattr", "fsetxattr"),
    *("removexattr", "lremovexattr", "fremovexattr"),
)

# Where the calls have their flags. include/uapi/asm-generic/fcntl.h, the same on each architecture: O_ACCMODE, O_CREAT,
# O_TRUNC.
_OPENING = (("open", 1), ("openat", 2))
_O_WRITES = 0o3 | 0o100 | 0o1000

# include/uapi/linux/sched.h: new namespaces; and a child that is the runner's instead of the program's.
_NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
_CLONE_PARENT, _CLONE_THREAD = 0x00008000, 0x00010000
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE_MASK = 1, 1, 0xF
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SCHED_CORE = 1, 4, 22, 62
_F_SETOWN, _F_SETOWN_EX, _F_SETLEASE, _F_NOTIFY, _F_SETPIPE_SZ = 8, 15, 1024, 1026, 1031
# TCGETS and TIOCGWINSZ (is it a terminal, and how wide), FIONREAD, FIONBIO, FIONCLEX, FIOCLEX.
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)


def rules(*, abi: int, pid: int, may_fork: bool, asks: bool = True, writes: bool = False) -> tuple[Rule, ...]:
    """Return the rules for one process.

    pid: its own. abi: where Landlock has no scopes, signals are filtered; where there is none, 0, writing too. asks:
    whether what starts a process or a thread, or names a path, waits for an answer; without it nothing of it is refused
    but new processes of a program that may have none. writes: whether Landlock leaves it a place to write to; then
    what makes, removes, renames or changes a file waits for an answer, too. Raises ValueError for one that could not.
    """
    if writes and not (abi and asks):
        raise ValueError("a program writes only where Landlock says where, and its runner can be asked")
    return (
        *(Rule(call, Action.KILL) for call in KILLED),
        *(Rule(call, Action.ASK) for call in path_calls.WRITING if writes),
        *(Rule(call, Action.UNSUPPORTED) for call in _ATTRIBUTES if writes),
        # After those that may be asked for: the first that applies decides.
        *(Rule(call, Action.REFUSE) for call in REFUSED),
        # Their flags are behind a pointer, which a filter cannot follow; libraries fall back to clone and openat.
        Rule("clone3", Action.MISSING),
        Rule("openat2", Action.MISSING),
        *_arguments(),
        *(() if may_fork else _no_processes()),
        # After the rules that refuse some: the first that applies decides.
        *(Rule(call, Action.ASK) for call in ("clone", "fork", "vfork") if asks),
        *(() if abi else _writing()),
        *(() if abi >= landlock.SCOPES_SINCE else _signals(pid)),
        *(_paths(names=writes) if asks else ()),
    )


def _arguments() -> Iterator[Rule]:
    yield Rule("clone", Action.REFUSE, (Condition(argument=0, mask=_NAMESPACES, value=0, equal=False),))
    yield Rule("clone", Action.REFUSE, (Condition(argument=0, mask=_CLONE_PARENT, value=0, equal=False),))
    # With another pid it lowers the runner's limits.
    yield Rule("prlimit64", Action.REFUSE, (Condition(argument=0, value=0, equal=False),))
    # A pair of datagram sockets could still send to any path: connected streams cannot.
    yield Rule("socketpair", Action.REFUSE, (Condition(argument=0, value=_AF_UNIX, equal=False),))
    yield Rule(
        "socketpair", Action.REFUSE, (Condition(argument=1, mask=_SOCK_TYPE_MASK, value=_SOCK_STREAM, equal=False),)
    )
    # It ends with its runner, stays visible to it, and takes no processor from other runs.
    for option in (_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SCHED_CORE):
        yield Rule("prctl", Action.REFUSE, (Condition(argument=0, value=option, equal=True),))
    # Leases and news of files it may read; and a pipe's memory, which counts for no one.
    for command in (_F_SETLEASE, _F_NOTIFY, _F_SETPIPE_SZ):
        yield Rule("fcntl", Action.REFUSE, (Condition(argument=1, value=command, equal=True),))
    # Others change flags of files that were opened for reading, send signals, or type into a terminal.
    yield Rule("ioctl", Action.REFUSE, tuple(Condition(argument=1, value=request, equal=False) for request in _IOCTLS))


def _no_processes() -> Iterator[Rule]:
    for call in ("fork", "vfork"):
        yield Rule(call, Action.REFUSE)
    yield Rule("clone", Action.REFUSE, (Condition(argument=0, mask=_CLONE_THREAD, value=0, equal=True),))


def _writing() -> Iterator[Rule]:
    for call, flags_at in _OPENING:
        yield Rule(call, Action.REFUSE, (Condition(argument=flags_at, mask=_O_WRITES, value=0, equal=False),))


def _paths(*, names: bool) -> Iterator[Rule]:
    """Last: those that write are refused without a question. names: whether what is opened may be no more than a name.

    A descriptor of a file that it may not open shows what stat does. Tools that copy name the folder to copy to by one;
    a program that may have them is asked for their path, and whoever wins that race learns what stat says.
    """
    for call, flags_at in _OPENING if not names else ():
        has = Condition(argument=flags_at, mask=path_calls.O_PATH, value=0, equal=False)
        yield Rule(call, Action.REFUSE, (has,))
    for call in path_calls.NAMES:
        yield Rule(call, Action.ASK)


def _signals(pid: int) -> Iterator[Rule]:
    """Signals to the process itself; to its group too, which no one else is in and no one leaves."""
    other = Condition(argument=0, value=pid, equal=False)
    yield Rule("kill", Action.REFUSE, (other, Condition(argument=0, value=0, equal=False)))
    for call in ("tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"):
        yield Rule(call, Action.REFUSE, (other,))
    for command in (_F_SETOWN, _F_SETOWN_EX):
        yield Rule("fcntl", Action.REFUSE, (Condition(argument=1, value=command, equal=True),))
