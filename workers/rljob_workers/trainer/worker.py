"""One rank's process: `python -m rljob_workers.trainer.worker --config role.json`, started by the launcher.

Signals, probes, cores and memory; the training itself is wired in `app.py`. The health server comes first, so that
a stop is heard while the model loads; torch is imported after that.
"""

import dataclasses
import functools
import logging
import os
import signal
import sys
import threading

from rljob_api import enums, process_config
from rljob_workers.runtime import boot, health, machine, metrics


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Which rank this is among all and on its node."""

    rank: int
    local_rank: int
    local_world_size: int


def place_from_environment() -> Place:
    """Read what the launcher, or torchrun, sets. Raises KeyError without."""
    return Place(*(int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")))


def main() -> int:
    # Ranks have sessions of their own: nothing else would end them with the launcher.
    boot.die_with_parent()
    invocation = boot.parse(
        process_config.TrainerConfig, program="rljob-trainer-rank", about="One rank of rljob-trainer."
    )
    boot.configure_process(invocation.config)
    place = place_from_environment()
    run_here = functools.partial(run, invocation.config, place)
    return boot.run_main(run_here, termination_log=termination_log(place))


def termination_log(place: Place) -> str:
    """Return where a rank leaves its last word: a pod has one message, and its first rank writes it."""
    return boot.TERMINATION_LOG if place.local_rank == 0 else os.devnull


def run(config: process_config.TrainerConfig, place: Place) -> int:
    """Serve probes and stop requests around the training."""
    stop, registered = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    registry = metrics.Metrics(role=enums.Role.TRAINER, job=config.job)
    probes = health.HealthServer(
        host=config.health_host,
        port=config.health_port,
        metrics=registry,
        ready=lambda: (registered.is_set(), "registered" if registered.is_set() else "loading the model"),
        on_stop=stop.set,
        token_file=health.stop_token_file(config),
    )
    if place.local_rank == 0:
        probes.start()
    os.sched_setaffinity(0, cores_of(config, place) or os.sched_getaffinity(0))
    machine.keep_memory()
    # DeepSpeed reports at import, through the root logger, which compilers it finds and does not need.
    logging.disable(logging.INFO)
    # Here and not above: a config error or --help must not wait for torch.
    with boot.importing():
        from rljob_workers.trainer import app

    logging.disable(logging.NOTSET)
    try:
        return app.run_rank(
            config, registry=registry, stop=stop, registered=registered, rank=place.rank, local_rank=place.local_rank
        )
    finally:
        if place.local_rank == 0:
            probes.close()


def cores_of(config: process_config.TrainerConfig, place: Place) -> tuple[int, ...]:
    """Return this rank's own cores where there are `num_threads` for each rank of the node, else all of the role's."""
    cores, threads = tuple(sorted(config.cpu_affinity)), config.num_threads
    if threads <= 0 or len(cores) < threads * place.local_world_size:
        return cores
    return cores[place.local_rank * threads : (place.local_rank + 1) * threads]


if __name__ == "__main__":
    sys.exit(main())
