"""Which cores and how many threads each role gets on this machine. The one place to tune it. Pure.

Generation and training compute; coordinator and verifier mostly wait and may run anywhere. With few cores the two share
all of them: whoever has work runs, and a thread count above a role's fair share only makes OpenMP threads wait for
each other. With many, each side gets its own, so that neither evicts the other's cache.
"""

import contextlib
import dataclasses
import socket
from collections.abc import Mapping, Sequence

from rljob_api import names

# Up to this many cores generation and training share all of them, each with this many threads.
_SHARED_UP_TO_CORES = 3
_SHARED_THREADS = 1
_COMPUTE = (names.Role.ROLLOUT, names.Role.TRAINER)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CoreShare:
    """Cores a process may use (empty: all) and the number of compute threads it starts."""

    affinity: tuple[int, ...]
    num_threads: int


def plan_cores(cores: Sequence[int], processes: Mapping[names.Role, int]) -> dict[names.Role, tuple[CoreShare, ...]]:
    """Return one share per process of each role. `processes` counts them: rollout replicas, trainer ranks.

    Raises ValueError if there is no core.
    """
    if not cores:
        raise ValueError("need at least one core")
    plan = {role: (CoreShare(affinity=(), num_threads=1),) * count for role, count in processes.items()}
    compute = {role: processes[role] for role in _COMPUTE if processes.get(role)}
    if len(cores) <= max(_SHARED_UP_TO_CORES, sum(compute.values())):
        threads = min(_SHARED_THREADS, len(cores))
        return plan | {
            role: (CoreShare(affinity=tuple(cores), num_threads=threads),) * count for role, count in compute.items()
        }
    slices = _slices(cores, sum(compute.values()))
    for role, count in compute.items():
        plan[role] = tuple(CoreShare(affinity=own, num_threads=len(own)) for own in slices[:count])
        slices = slices[count:]
    return plan


def _slices(cores: Sequence[int], parts: int) -> list[tuple[int, ...]]:
    """Cut into `parts` contiguous runs whose lengths differ by at most 1."""
    return [tuple(cores[len(cores) * part // parts : len(cores) * (part + 1) // parts]) for part in range(parts)]


HOST = "127.0.0.1"


def free_ports(count: int) -> tuple[int, ...]:
    """Return `count` different TCP ports that nothing listened on a moment ago.

    All are held at once, so that none is given twice. Another process may still take one before the role binds it: the
    role then ends with the infrastructure code and is started again.
    """
    with contextlib.ExitStack() as held:
        return tuple(_bound(held) for _ in range(count))


def _bound(held: contextlib.ExitStack) -> int:
    opened = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    opened.bind((HOST, 0))
    return int(opened.getsockname()[1])
