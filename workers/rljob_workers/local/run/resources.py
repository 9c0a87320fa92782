"""Which cores, how many threads and which GPUs each role gets on this machine. The one place to tune it. Pure.

Generation and training compute; coordinator and verifier mostly wait and may run anywhere. With few cores the two share
all of them: whichever has work runs, and a thread count above a role's fair share only makes OpenMP threads wait for
each other. With many, each side gets its own, so that neither evicts the other's cache.
"""

import dataclasses
import errno
import itertools
import random
import socket
from collections.abc import Mapping, Sequence

from rljob_api import enums, errors, process_config
from rljob_workers.runtime import device

# Up to this many cores generation and training share all of them, each with this many threads.
_SHARED_UP_TO_CORES = 3
_SHARED_THREADS = 1
_COMPUTE = (enums.Role.ROLLOUT, enums.Role.TRAINER)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CoreShare:
    """Cores a process may use (empty: all) and the number of compute threads it starts."""

    affinity: tuple[int, ...]
    num_threads: int


def plan_cores(cores: Sequence[int], processes: Mapping[enums.Role, int]) -> dict[enums.Role, tuple[CoreShare, ...]]:
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


def plan_gpus(
    configs: Mapping[str, process_config.ProcessConfig], gpus: Sequence[str], *, engine: device.Kind | None
) -> dict[str, tuple[str, ...]]:
    """Return the GPUs of each process that computes on some, by its name; none where the job is not for GPUs.

    Every process has its own, rollouts first. On a machine with a single GPU all share it, which takes a written share
    of its memory for the engine. engine: what the installed one is for, if it tells. Raises ManifestError where there
    are too few.
    """
    needed, shares = {}, []
    for name, config in configs.items():
        if isinstance(config, process_config.RolloutConfig) and (config.device == "cuda" or engine != "cpu"):
            needed[name] = config.spec.rollout.engine.num_gpus
            shares.append(config.spec.rollout.engine.gpu_memory_utilization)
        elif isinstance(config, process_config.TrainerConfig):
            needed[name] = config.spec.trainer.processes_per_node
    devices = {
        config.device
        for config in configs.values()
        if isinstance(config, process_config.RolloutConfig | process_config.TrainerConfig)
    }
    if "cpu" in devices or ("cuda" not in devices and not gpus):
        return {}
    total = sum(needed.values())
    if total <= len(gpus):
        places = itertools.accumulate(needed.values(), initial=0)
        return {name: tuple(gpus[start : start + needed[name]]) for name, start in zip(needed, places, strict=False)}
    if len(gpus) == 1 and set(needed.values()) == {1}:
        _share_one(shares)
        return dict.fromkeys(needed, (gpus[0],))
    listed = ", ".join(f"{name} {count}" for name, count in needed.items())
    visible = f"{len(gpus) or 'none'} {'is' if len(gpus) < 2 else 'are'} visible"
    raise errors.ManifestError(
        f"the job computes on {total} GPUs ({listed}), but {visible}"
        " here: lower spec.rollout.replicas, spec.rollout.engine.tensorParallelSize or spec.trainer.processesPerNode"
    )


def _share_one(shares: Sequence[float | None]) -> None:
    """Raise ManifestError unless the engines' shares of the one GPU leave the trainer something."""
    field = "spec.rollout.engine.gpuMemoryUtilization"
    if None in shares:
        raise errors.ManifestError(
            f"{field} is unset, but rollouts and trainer share one GPU here: write the share of each rollout, such as"
            ' "0.4"'
        )
    if sum(share or 0.0 for share in shares) >= 1.0:
        raise errors.ManifestError(
            f"{field} is '{shares[0]:g}', but {len(shares)} rollouts and the trainer share one GPU here: write a share"
            " that leaves the trainer something"
        )


HOST = "127.0.0.1"


# Below the ports that systems give to connections (32768 and up on Linux) and those of Services (30000 and up): a role
# binds its port seconds after it was chosen, and a busy machine gives out thousands of the others by then.
PORTS = range(10_000, 30_000)


def free_ports(count: int) -> tuple[int, ...]:
    """Return `count` different TCP ports that nothing listened on a moment ago.

    Another process may still take one before the role binds it: the role then ends with the infrastructure code and is
    started again. Raises OSError (EADDRINUSE) where so few are free.
    """
    shuffled = random.sample(PORTS, len(PORTS))
    ports = tuple(itertools.islice(filter(is_free, shuffled), count))
    if len(ports) < count:
        raise OSError(errno.EADDRINUSE, f"{count} TCP ports are needed, and of {PORTS} only {len(ports)} are free")
    return ports


def is_free(port: int) -> bool:
    """Return whether nothing listens on a TCP port of this machine's loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as opened:
        try:
            opened.bind((HOST, port))
        except OSError:
            return False
    return True
