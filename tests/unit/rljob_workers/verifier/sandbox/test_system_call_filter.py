"""The filter as the kernel would run it: an interpreter of its instructions, over calls that must and must not pass."""

import ctypes
import errno
import struct

import pytest

from rljob_workers.verifier.sandbox.confinement import bpf, filter_rules, path_calls, syscalls
from rljob_workers.verifier.sandbox.confinement.syscalls import AARCH64, X86_64

KILLED, ASKED, ALLOWED = bpf.KILL_PROCESS, bpf.USER_NOTIF, bpf.ALLOW
REFUSED, ABSENT = bpf.ERRNO | errno.EPERM, bpf.ERRNO | errno.ENOSYS
I386_AUDIT = 0x40000003
PID = 4242
# CLONE_VM, FS, FILES, SIGHAND, THREAD, SYSVSEM, SETTLS, PARENT_SETTID, CHILD_CLEARTID: what pthread_create passes.
THREAD, FORK = 0x3D0F00, 0x01200011
NEW_USER = 0x10000000


def verdict(
    program: tuple[bpf.Instruction, ...], number: int, *arguments: int, audit: int = X86_64.audit
) -> int:  # fmt: skip
    """Run a program on `struct seccomp_data`."""
    padded = [argument & (1 << 64) - 1 for argument in (*arguments, *[0] * 6)][:6]
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, audit, 0, *padded)
    accumulator = at = 0
    while True:
        code, if_true, if_false, constant = program[at]
        at += 1
        if code == bpf.LOAD:
            (accumulator,) = struct.unpack_from("<I", data, constant)
        elif code == bpf.AND:
            accumulator &= constant
        elif code == bpf.RETURN:
            return constant
        else:
            compared = {
                bpf.JUMP_EQUAL: accumulator == constant,
                bpf.JUMP_GREATER: accumulator > constant,
                bpf.JUMP_GREATER_EQUAL: accumulator >= constant,
            }
            at += if_true if compared[code] else if_false


def assembled(
    *, abi: int = 7, may_fork: bool = False, asks: bool = True, architecture: syscalls.Architecture = X86_64
) -> tuple[bpf.Instruction, ...]:
    return bpf.assemble(filter_rules.rules(abi=abi, pid=PID, may_fork=may_fork, asks=asks), architecture)


def number(call: str, architecture: syscalls.Architecture = X86_64) -> int:
    found = syscalls.number(call, architecture)
    assert found is not None
    return found


@pytest.mark.covers("sandbox P7", "sandbox S-3")
@pytest.mark.parametrize("architecture", [X86_64, AARCH64], ids=lambda one: one.name)
def test_calls_without_innocent_use_kill_and_the_others_of_the_table_fail(
    architecture: syscalls.Architecture,
) -> None:
    program = assembled(architecture=architecture)
    for calls, wanted in ((filter_rules.KILLED, KILLED), (filter_rules.REFUSED, REFUSED)):
        for call in calls:
            found = syscalls.number(call, architecture)
            if found is not None:
                assert verdict(program, found, audit=architecture.audit) == wanted, call


# read, write, mmap, brk, futex, getrandom, exit_group, fstat, getcwd, wait4, epoll_create1, sched_getaffinity.
@pytest.mark.parametrize("innocent", [0, 1, 9, 12, 202, 318, 231, 5, 79, 61, 291, 204])
def test_what_every_interpreter_does_is_allowed(innocent: int) -> None:
    assert verdict(assembled(), innocent) == ALLOWED


def test_another_architecture_is_killed_whatever_it_calls() -> None:
    for call in (0, 1, 4, 102):
        assert verdict(assembled(), call, audit=I386_AUDIT) == KILLED
        assert verdict(assembled(architecture=AARCH64), call, audit=X86_64.audit) == KILLED


@pytest.mark.parametrize("call", [0x40000000, 0x40000000 + 59, 0x40000000 + 520, -1])
def test_x32_numbers_are_killed(call: int) -> None:
    assert verdict(assembled(), call) == KILLED


def test_calls_newer_than_the_table_are_absent() -> None:
    # map_shadow_stack, statmount and listmount are newer; cachestat is the last one that was read.
    assert verdict(assembled(), 451) == ALLOWED
    assert {verdict(assembled(), call) for call in (452, 453, 457, 458, 10_000)} == {ABSENT}


def test_clone3_is_absent_so_that_libraries_fall_back() -> None:
    assert verdict(assembled(may_fork=True), number("clone3")) == ABSENT


@pytest.mark.covers("sandbox S-3")
@pytest.mark.parametrize(
    ("flags", "alone", "with_processes"),
    [
        (THREAD, ASKED, ASKED),
        (FORK, REFUSED, ASKED),
        (FORK | NEW_USER, REFUSED, REFUSED),
        (THREAD | NEW_USER, REFUSED, REFUSED),
        # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWPID, NEWNET.
        *[(FORK | 1 << bit, REFUSED, REFUSED) for bit in (17, 25, 26, 27, 29, 30)],
        # CLONE_PARENT: its parent would be the runner.
        (FORK | 1 << 15, REFUSED, REFUSED),
        # The kernel reads the low half alone.
        (FORK | 1 << 40, REFUSED, ASKED),
    ],
)
def test_clone_asks_for_threads_and_for_processes_only_where_they_are_granted(
    flags: int, alone: int, with_processes: int
) -> None:
    assert verdict(assembled(may_fork=False), number("clone"), flags) == alone
    assert verdict(assembled(may_fork=True), number("clone"), flags) == with_processes


def test_fork_and_vfork_need_the_grant_and_ask() -> None:
    for call in ("fork", "vfork"):
        assert verdict(assembled(may_fork=False), number(call)) == REFUSED
        assert verdict(assembled(may_fork=True), number(call)) == ASKED


def test_filter_that_cannot_ask_lets_threads_start_and_processes_where_they_are_granted() -> None:
    for may_fork, forked in ((False, REFUSED), (True, ALLOWED)):
        program = assembled(may_fork=may_fork, asks=False)
        assert verdict(program, number("clone"), THREAD) == ALLOWED
        assert verdict(program, number("clone"), FORK) == forked
        assert verdict(program, number("fork")) == forked
        assert verdict(program, number("clone"), FORK | NEW_USER) == REFUSED


# By the filter without Landlock and with it, and by one that asks.
@pytest.mark.parametrize(
    ("flags", "alone", "with_landlock", "asking"),
    [
        # O_RDONLY, O_CLOEXEC, O_DIRECTORY.
        *[(flags, ALLOWED, ALLOWED, ASKED) for flags in (0, 0o2000000, 0o200000)],
        # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_TMPFILE for reading and writing.
        *[(flags, REFUSED, ALLOWED, ASKED) for flags in (0o1, 0o2, 0o100, 0o1000, 0o20200002)],
        # O_PATH, with O_DIRECTORY and O_CLOEXEC too: Landlock does not ask it for leave, and what it opens shows sizes.
        *[(flags, ALLOWED, ALLOWED, REFUSED) for flags in (0o10000000, 0o12200000)],
    ],
)
def test_opening_is_refused_by_its_flags_or_asks(flags: int, alone: int, with_landlock: int, asking: int) -> None:
    for architecture in (X86_64, AARCH64):
        programs = (
            assembled(abi=0, asks=False, architecture=architecture),
            assembled(abi=1, asks=False, architecture=architecture),
            assembled(architecture=architecture),
        )
        for call, before in (("open", 1), ("openat", 2)):
            found = syscalls.number(call, architecture)
            if found is None:
                continue
            arguments = (*[0] * before, flags)
            for program, wanted in zip(programs, (alone, with_landlock, asking), strict=True):
                assert verdict(program, found, *arguments, audit=architecture.audit) == wanted


def test_making_and_removing_files_is_refused_with_landlock_and_without() -> None:
    for architecture in (X86_64, AARCH64):
        for program in (assembled(abi=abi, asks=False, architecture=architecture) for abi in (0, 1)):
            for call in ("mkdirat", "unlinkat", "linkat", "symlinkat", "mknodat", "renameat2"):
                assert verdict(program, number(call, architecture), audit=architecture.audit) == REFUSED


@pytest.mark.parametrize("asks", [True, False])
def test_what_names_a_path_asks_where_it_can(asks: bool) -> None:
    for architecture in (X86_64, AARCH64):
        program = assembled(asks=asks, architecture=architecture)
        for call in path_calls.path_calls(architecture):
            found = syscalls.number(call, architecture)
            if found is not None:
                assert verdict(program, found, audit=architecture.audit) == (ASKED if asks else ALLOWED), call
        assert verdict(program, number("openat2", architecture), audit=architecture.audit) == ABSENT


@pytest.mark.parametrize(
    ("call", "arguments", "wanted"),
    [
        # Limits of the caller alone: of pid 0.
        ("prlimit64", (0, 7), ALLOWED),
        ("prlimit64", (PID, 7), REFUSED),
        ("prlimit64", (1, 0), REFUSED),
        # A pair of Unix streams; datagrams could go to any path. SOCK_NONBLOCK and SOCK_CLOEXEC are flags.
        ("socketpair", (1, 1), ALLOWED),
        ("socketpair", (1, 1 | 0o2004000), ALLOWED),
        ("socketpair", (1, 2), REFUSED),
        ("socketpair", (1, 5), REFUSED),
        ("socketpair", (30, 1), REFUSED),
        # PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SCHED_CORE; PR_SET_NAME and PR_GET_NAME.
        ("prctl", (1, 0), REFUSED),
        ("prctl", (4, 0), REFUSED),
        ("prctl", (22, 2), REFUSED),
        ("prctl", (62, 1), REFUSED),
        ("prctl", (15, 0), ALLOWED),
        ("prctl", (16, 0), ALLOWED),
        # F_SETPIPE_SZ, F_SETLEASE, F_NOTIFY; F_SETFD and F_SETFL.
        ("fcntl", (3, 1031), REFUSED),
        ("fcntl", (3, 1024), REFUSED),
        ("fcntl", (3, 1026), REFUSED),
        ("fcntl", (3, 2), ALLOWED),
        ("fcntl", (3, 4), ALLOWED),
        # TIOCSTI, FIOSETOWN, SIOCSPGRP, FS_IOC_SETFLAGS, FS_IOC_ENABLE_VERITY; TCGETS and FIONBIO.
        *[("ioctl", (0, request), REFUSED) for request in (0x5412, 0x8901, 0x8902, 0x40086602, 0x40806685)],
        ("ioctl", (0, 0x5401), ALLOWED),
        ("ioctl", (0, 0x5421), ALLOWED),
    ],
)
def test_call_is_judged_by_its_arguments(call: str, arguments: tuple[int, ...], wanted: int) -> None:
    for abi in (1, 7):
        assert verdict(assembled(abi=abi), number(call), *arguments) == wanted


@pytest.mark.covers("sandbox S-3")
@pytest.mark.parametrize(
    ("call", "arguments", "filtered"),
    [
        ("kill", (PID, 9), ALLOWED),
        ("kill", (0, 9), ALLOWED),
        ("kill", (1, 9), REFUSED),
        ("kill", (-1, 9), REFUSED),
        ("kill", (-PID, 9), REFUSED),
        ("tkill", (PID, 9), ALLOWED),
        ("tkill", (PID + 1, 9), REFUSED),
        ("tgkill", (PID, PID + 7, 9), ALLOWED),
        ("tgkill", (1, 1, 9), REFUSED),
        ("rt_sigqueueinfo", (1, 9), REFUSED),
        ("rt_tgsigqueueinfo", (1, 1, 9), REFUSED),
        # F_SETOWN, F_SETOWN_EX: a signal by way of a descriptor.
        ("fcntl", (3, 8, 1), REFUSED),
        ("fcntl", (3, 15, 1), REFUSED),
    ],
)
def test_signals_to_others_are_refused_where_landlock_has_no_scopes(
    call: str, arguments: tuple[int, ...], filtered: int
) -> None:
    assert verdict(assembled(abi=5), number(call), *arguments) == filtered
    assert verdict(assembled(abi=6), number(call), *arguments) == ALLOWED


def test_program_ends_whatever_is_called_and_is_as_long_as_the_kernel_takes() -> None:
    for abi in (1, 7):
        for may_fork in (False, True):
            program = assembled(abi=abi, may_fork=may_fork)
            assert len(program) <= 4096
            for call in range(600):
                assert verdict(program, call, 1, 2, 3) in (KILLED, REFUSED, ABSENT, ASKED, ALLOWED)
            assert len(bpf.packed(program)) == 8 * len(program)


def test_filter_that_the_kernel_would_refuse_is_not_made() -> None:
    rules = filter_rules.rules(abi=1, pid=PID, may_fork=False) * 20
    with pytest.raises(ValueError, match="at most 4096 instructions"):
        bpf.assemble(rules, X86_64)


def test_no_number_stands_for_two_calls_and_every_rule_has_a_number() -> None:
    calls = {rule.call for rule in filter_rules.rules(abi=0, pid=PID, may_fork=False)}
    for architecture in (X86_64, AARCH64):
        numbers = [found for call in calls if (found := syscalls.number(call, architecture)) is not None]
        assert len(numbers) == len(set(numbers))
        assert len(numbers) > 100


def _libseccomp() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libseccomp.so.2")
    except OSError:
        return None


@pytest.mark.skipif(_libseccomp() is None, reason="libseccomp is not installed")
@pytest.mark.parametrize("architecture", [X86_64, AARCH64], ids=lambda architecture: architecture.name)
def test_numbers_of_calls_are_those_of_libseccomp(architecture: syscalls.Architecture) -> None:
    library = _libseccomp()
    assert library is not None
    resolve = library.seccomp_syscall_resolve_name_arch
    resolve.argtypes = [ctypes.c_uint32, ctypes.c_char_p]
    # A call that the architecture does not have has a negative number there; an unknown name is -1.
    theirs = {name: resolve(architecture.audit, name.encode()) for name in syscalls.NAMES}
    assert -1 not in theirs.values()
    ours = {name: syscalls.number(name, architecture) for name in syscalls.NAMES}
    assert ours == {name: number if number >= 0 else None for name, number in theirs.items()}


@pytest.mark.parametrize(("abi", "asks"), [(0, True), (7, False)])
def test_nothing_may_write_where_nothing_says_where(abi: int, asks: bool) -> None:
    with pytest.raises(ValueError, match="writes only where Landlock says where"):
        filter_rules.rules(abi=abi, pid=PID, may_fork=True, asks=asks, writes=True)


def test_program_that_may_write_is_asked_for_each_path_and_makes_no_device_and_no_hard_link() -> None:
    rules = filter_rules.rules(abi=7, pid=PID, may_fork=True, writes=True)
    first = {}
    for rule in rules:
        first.setdefault(rule.call, rule.action)
    assert {first[call] for call in path_calls.WRITING} == {filter_rules.Action.ASK}
    for call in ("mknod", "mknodat", "link", "linkat", "chown", "fchownat", "truncate"):
        assert first[call] is filter_rules.Action.REFUSE
