"""Calls that wait for a supervisor's answer, on this kernel: let continue, interrupted, and without a supervisor."""

import contextlib
import errno
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rljob_workers.verifier.sandbox.confinement import bpf, filter_rules, notifications, path_calls, profile, syscalls
from rljob_workers.verifier.sandbox.confinement.filter_rules import Action, Rule
from rljob_workers.verifier.sandbox.processes import enter

# Hands its listener over, then forks once for each line; says what came of it.
FORKS = """
import errno, importlib.util, json, os, _socket, sys
spec = importlib.util.spec_from_file_location("enter", sys.argv[1])
enter = importlib.util.module_from_spec(spec)
spec.loader.exec_module(enter)
enter._prctl(38, 1)
listener = enter._filter(bytes.fromhex(sys.argv[2]), int(sys.argv[3]))
runner = _socket.socket(fileno=int(sys.argv[4]))
runner.sendmsg([b"l"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, listener.to_bytes(4, sys.byteorder))])
os.close(listener)
for _ in sys.stdin:
    try:
        child = os.fork()
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
        continue
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    print("forked", flush=True)
"""
TIMEOUT_MS = 60_000


@contextlib.contextmanager
def asking(confined: profile.Confinement) -> Iterator[tuple["subprocess.Popen[str]", notifications.Listener]]:
    """Yield a process whose forks ask, and its listener, which is closed by anyone who wants it to be."""
    rules = [Rule(call, Action.ASK) for call in ("clone", "fork", "vfork")]
    rules.append(Rule("clone3", Action.MISSING))
    filter_ = bpf.packed(bpf.assemble(rules, confined.architecture)).hex()
    seccomp = confined.orders(pid=0, may_fork=True)["seccomp"]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-I", "-S", "-c", FORKS, enter.__file__, filter_, str(seccomp), str(theirs.fileno())]
        with subprocess.Popen(
            command, pass_fds=(theirs.fileno(),), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        ) as process:
            try:
                descriptor = notifications.handed_over(ours)
                assert descriptor is not None
                assert not os.get_inheritable(descriptor)
                yield (
                    process,
                    notifications.Listener(
                        descriptor, request_bytes=confined.request_bytes, answer_bytes=confined.answer_bytes
                    ),
                )
            finally:
                process.kill()


def ask(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def wait_for_news(listener: notifications.Listener) -> None:
    news = select.poll()
    news.register(listener, select.POLLIN)
    assert news.poll(TIMEOUT_MS), "nobody asked"


def received(process: "subprocess.Popen[str]", listener: notifications.Listener) -> notifications.Request:
    """Have it ask, and return what it asks for."""
    ask(process)
    wait_for_news(listener)
    request = listener.receive()
    assert request is not None
    return request


def test_call_waits_until_it_is_let_go_on(confined: profile.Confinement) -> None:
    with asking(confined) as (process, listener), contextlib.closing(listener):
        assert not listener.is_waiting()
        for _ in range(2):
            ask(process)
            wait_for_news(listener)
            assert listener.is_waiting()
            request = listener.receive()
            assert request is not None
            assert request.task == process.pid
            assert request.number in {syscalls.number(name, confined.architecture) for name in ("clone", "fork")}
            assert listener.is_valid(request)
            assert listener.go_on(request)
            assert not listener.is_valid(request)
            assert said(process) == "forked"
            assert not listener.is_waiting()


def test_call_fails_once_nobody_holds_the_listener(confined: profile.Confinement) -> None:
    with asking(confined) as (process, listener):
        ask(process)
        wait_for_news(listener)
        listener.close()
        assert said(process) == "ENOSYS"
        ask(process)
        assert said(process) == "ENOSYS"


def test_listener_tells_that_nobody_is_left_and_that_nobody_asks(confined: profile.Confinement) -> None:
    with asking(confined) as (process, listener), contextlib.closing(listener):
        process.kill()
        process.wait()
        wait_for_news(listener)
        assert not listener.is_waiting()


def test_process_that_is_killed_while_it_asks_was_granted_nothing(confined: profile.Confinement) -> None:
    with asking(confined) as (process, listener), contextlib.closing(listener):
        ask(process)
        wait_for_news(listener)
        # As between the look at who waits and the answer.
        process.kill()
        process.wait()
        assert listener.receive() is None


def test_process_that_is_killed_before_its_answer_no_longer_waits_for_it(confined: profile.Confinement) -> None:
    with asking(confined) as (process, listener), contextlib.closing(listener):
        request = received(process, listener)
        process.kill()
        process.wait()
        assert not listener.is_valid(request)
        assert [listener.go_on(request), listener.returned(request, 0), listener.failed(request, 1)] == [False] * 3


def test_call_returns_or_fails_as_its_supervisor_says(confined: profile.Confinement) -> None:
    with asking(confined) as (process, listener), contextlib.closing(listener):
        request = received(process, listener)
        assert listener.failed(request, errno.EXDEV)
        assert said(process) == "EXDEV"
        request = received(process, listener)
        # As a parent it waits for a child that no one made.
        assert listener.returned(request, 1)
        assert said(process) == "", "it went on as the parent of process 1, which is no child of its own"


def test_process_that_ends_before_it_is_confined_hands_nothing_over() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        ours.send(b"a request that is never read")
        theirs.close()
        assert notifications.handed_over(ours) is None


def test_message_whose_descriptor_was_lost_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"l")
        with pytest.raises(OSError, match="without its descriptor"):
            notifications.handed_over(ours)


def test_sizes_are_those_of_this_kernel_and_at_least_those_of_the_first(confined: profile.Confinement) -> None:
    # struct seccomp_notif and seccomp_notif_resp of Linux 5.0: 8 + 4 + 4 + 64 and 8 + 8 + 4 + 4 bytes.
    request_bytes, answer_bytes = notifications.sizes(confined.architecture)
    assert request_bytes >= 80
    assert answer_bytes >= 24


def test_rules_ask_for_every_way_to_start_a_process_and_to_name_a_path_that_they_do_not_refuse() -> None:
    rules = filter_rules.rules(abi=7, pid=1, may_fork=True)
    asked = {rule.call for rule in rules if rule.action is Action.ASK}
    assert asked == {"clone", "fork", "vfork", *path_calls.NAMES}
    assert {Rule("clone3", Action.MISSING), Rule("openat2", Action.MISSING)} <= set(rules)
