"""Isolation level `confined`, as data: what a program's process is asked to do to itself before its first instruction.

Landlock rules and a system-call filter, worked out here, where the program is not, and applied by `processes/enter.py`
in the process. Needs no privilege, no namespace and no capability.
In a pod of a RuntimeClass that the job asks for, the filter and the limits may be all there is: gVisor has neither
Landlock (google/gvisor#13439) nor user notification (google/gvisor#14627). A program can then read what the pod's user
can read; the pod's own border is what keeps it from anything else.
"""

import dataclasses
import errno
import functools
import os
import pathlib
import platform
import sys
from collections.abc import Mapping

from rljob_api import errors
from rljob_workers.verifier.sandbox.confinement import bpf, filter_rules, landlock, notifications, syscalls

LEVEL = "confined"
# Of a kernel that does not know Landlock, or was started without it; and of one that does not know notification. What
# is refused for another reason is not missing.
_NO_LANDLOCK = (errno.ENOSYS, errno.EOPNOTSUPP)
_NO_NOTIFICATION = (errno.ENOSYS, errno.EINVAL)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """abi: the version of Landlock, 0 for none. readable: rights by path. request_bytes, answer_bytes: of what the
    filter asks, 0 where it cannot ask. writable: rights by path on folders that a program may write to, which takes
    Landlock and a filter that asks.
    """

    abi: int
    architecture: syscalls.Architecture
    interpreter: pathlib.Path
    readable: Mapping[str, int]
    request_bytes: int
    answer_bytes: int
    writable: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def asks(self) -> bool:
        """Return whether a program's new processes and threads wait for leave; without it they are counted alone."""
        return self.request_bytes > 0

    def orders(self, *, pid: int, may_fork: bool) -> dict[str, object]:
        """Return what the process `pid` is sent: JSON; structures of the kernel's as hexadecimal text."""
        # With scopes no rule names the process, and one filter serves all.
        named = 0 if self.abi >= landlock.SCOPES_SINCE else pid
        return {
            "ruleset": landlock.ruleset(self.abi).attributes().hex() if self.abi else None,
            "readable": {**self.readable, **self.writable},
            "filter": _filter(self.abi, self.architecture, named, may_fork, self.asks, bool(self.writable)),
            "asks": self.asks,
            "seccomp": syscalls.number("seccomp", self.architecture),
        }


@functools.lru_cache(maxsize=2)
def _filter(abi: int, architecture: syscalls.Architecture, pid: int, may_fork: bool, asks: bool, writes: bool) -> str:
    rules = filter_rules.rules(abi=abi, pid=pid, may_fork=may_fork, asks=asks, writes=writes)
    return bpf.packed(bpf.assemble(rules, architecture)).hex()


def of_this_machine(*, runtime_class: str = "") -> Confinement:
    """Return the confinement that this kernel has. Raises SandboxError that names the layer that is missing.

    runtime_class: the pod's, if the job asks for one. Under it a kernel may lack Landlock and user notification; what
    it has is used.
    """
    abi = 0
    try:
        abi = landlock.version()
    except OSError as error:
        if not runtime_class or error.errno not in _NO_LANDLOCK:
            raise errors.SandboxError(f"isolation {LEVEL}: layer landlock is missing: {error.strerror}") from error
    machine = platform.machine()
    if machine not in syscalls.ARCHITECTURES or sys.byteorder != "little":
        architectures = ", ".join(syscalls.ARCHITECTURES)
        raise errors.SandboxError(
            f"isolation {LEVEL}: layer seccomp is missing: there are filters for {architectures}, not for {machine}"
        )
    architecture = syscalls.ARCHITECTURES[machine]
    request_bytes = answer_bytes = 0
    try:
        request_bytes, answer_bytes = notifications.sizes(architecture)
    except OSError as error:
        if not runtime_class or error.errno not in _NO_NOTIFICATION:
            raise errors.SandboxError(
                f"isolation {LEVEL}: layer seccomp is missing: no user notification: {error.strerror}"
            ) from error
    interpreter = pathlib.Path(os.path.realpath(sys.executable))
    return Confinement(
        abi=abi,
        architecture=architecture,
        interpreter=interpreter,
        readable=landlock.readable(interpreter),
        request_bytes=request_bytes,
        answer_bytes=answer_bytes,
    )
