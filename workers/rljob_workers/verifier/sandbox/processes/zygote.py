"""A warm interpreter: it has imported what programs expect, forks once per program, and never runs one itself.

Started by `warm.py` as `candidate.py --warm CONTROL_FD PARENT`. Each message brings five descriptors: stdin, stdout,
stderr, a request to read, a reply to write. The answers are the fork's process id and, once it has ended, its exit code
and CPU seconds. This process has one thread, opens no request and holds nothing that came from outside but those
descriptors until they are handed over: a fork finds the modules, and nothing of the programs before it.
"""

import atexit
import gc
import os
import resource
import socket
import sys
from types import ModuleType

READY = b"ready"
NUM_DESCRIPTORS = 5
# Py_FinalizeEx's, where the standard streams cannot be flushed.
_NOT_FLUSHED = 120


class Ending:
    """Ends a fork that is over like any interpreter, but without taking it apart, which copies all of it page by page.

    As a context it sees how the program ends. As the callback that was registered first it is the last one to be
    called: threads have been waited for, the program's own callbacks are done. What the program defined is deleted, the
    streams are flushed, and the process ends. Where it cannot report the exit code, it leaves all of it to the
    interpreter.
    """

    def __init__(self, space: "dict[str, object]") -> None:
        """`space`: the program's namespace. Before anything else is registered."""
        self._space = space
        self._code: int | None = None
        atexit.register(self)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: "type[BaseException] | None", error: "BaseException | None", _: object) -> None:
        """Note the exit code that the interpreter will give it."""
        if error is None:
            self._code = 0
        elif isinstance(error, SystemExit):
            code = 0 if error.code is None else error.code
            self._code = code if isinstance(code, int) and 0 <= code <= 255 else None
        elif not isinstance(error, KeyboardInterrupt):
            self._code = 1

    def __call__(self) -> None:
        """End the process, if it is a program's."""
        if self._code is None:
            return
        sys.last_type = sys.last_value = sys.last_traceback = None
        self._space.clear()
        gc.collect()
        os._exit(self._code if flushed() else _NOT_FLUSHED)


def flushed() -> bool:
    """Flush what was printed; return whether it arrived."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except (OSError, ValueError):
        return False
    return True


def forks(*, control_fd: int, parent: int, launcher: ModuleType) -> "tuple[int, int]":
    """Serve until the other end is closed. Returns in a fork alone, once for each: request and reply."""
    control = socket.socket(fileno=control_fd)
    launcher.die_with(parent)
    _unlimit_cpu()
    control.send(READY)
    # What is there already is no one's garbage: looking at it would copy its pages in every fork.
    gc.collect()
    gc.freeze()
    return serve(control)


def serve(control: socket.socket) -> "tuple[int, int]":
    """Fork for each message. Returns in a fork alone."""
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, NUM_DESCRIPTORS)
        if len(descriptors) < NUM_DESCRIPTORS:
            sys.exit(0)
        child = os.fork()
        if child == 0:
            control.close()
            return taken_over(descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(str(child).encode())
        _, status, usage = os.wait4(child, 0)
        control.send(f"{os.waitstatus_to_exitcode(status)} {usage.ru_utime + usage.ru_stime}".encode())


def taken_over(descriptors: "list[int]") -> "tuple[int, int]":
    """Make the first three the standard ones, in a session of this process's own; return the other two."""
    os.setsid()
    for standard, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    return descriptors[3], descriptors[4]


def _unlimit_cpu() -> None:
    """Take no part in the limit of the answer during which this process happened to start."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))
