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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CoreShare:
    """Cores a process may use (empty: all) and the number of compute threads it starts."""

    affinity: tuple[int, ...]
    num_threads: int


def plan_cores(
    cores: Sequence[int], processes: Mapping[enums.Role, int], *, judges: bool = False
) -> dict[enums.Role, tuple[CoreShare, ...]]:
    """Return one share per process of each role. `processes` counts them: rollout replicas, trainer ranks. judges:
    whether the judge computes, with a model of its own.

    Raises ValueError if there is no core.
    """
    if not cores:
        raise ValueError("need at least one core")
    plan = {role: (CoreShare(affinity=(), num_threads=1),) * count for role, count in processes.items()}
    computing = (enums.Role.ROLLOUT, enums.Role.TRAINER, *([enums.Role.JUDGE] if judges else []))
    compute = {role: processes[role] for role in computing if processes.get(role)}
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

    Every process has its own, in the order of `configs`. On a machine with a single GPU all share it, which takes a
    written share of its memory for each engine. engine: what the installed one is for, if it tells. Raises
    ManifestError where there are too few.
    """
    needed, shares = {}, list[tuple[str, object]]()
    for name, config in configs.items():
        if isinstance(config, process_config.RolloutConfig) and (config.device == "cuda" or engine != "cpu"):
            needed[name] = config.spec.rollout.engine.num_gpus
            share = config.spec.rollout.engine.gpu_memory_utilization
            shares.append(("spec.rollout.engine.gpuMemoryUtilization", share))
        elif isinstance(config, process_config.JudgeConfig) and (server := config.server) is not None:
            if server.device == "cuda" or engine != "cpu":
                needed[name], share = server.num_gpus, server.extra_args.get("gpu_memory_utilization")
                shares.append(("spec.judge.extraArgs.gpu_memory_utilization", share))
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


def _share_one(shares: Sequence[tuple[str, object]]) -> None:
    """Raise ManifestError unless the engines' shares of the one GPU, by the fields that say them, leave the trainer
    something.
    """
    for field, share in shares:
        if not isinstance(share, int | float):
            raise errors.ManifestError(
                f"{field} is {'unset' if share is None else repr(share)}, but engines and trainer share one GPU here:"
                " write the share of each engine, such as 0.4"
            )
    written = [share for _, share in shares if isinstance(share, int | float)]
    if sum(written) >= 1.0:
        listed = " and ".join(f"{field} {share}" for field, share in dict(shares).items())
        raise errors.ManifestError(
            f"{listed}: {len(shares)} engines and the trainer share one GPU here: write shares that leave the trainer"
            " something"
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
