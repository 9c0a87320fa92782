"""The ranks of this node, one attempt, and the exit code that they end with. No torch.

Variables are those of torchrun, which may start a rank as well. Its agent is not used: restarts and changes of
membership are the operator's here, and for the rest a launcher would hold torch, 3 s and 0.8 GB of it.
"""

import logging
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from rljob_api import enums, process_config

logger = logging.getLogger(__name__)

# Ranks that wait for one that failed hang in a collective; they are given this long before SIGKILL.
_SHUTDOWN_S = 5.0


def run_ranks(config: process_config.TrainerConfig, module: Sequence[str]) -> int:
    """Run `python -m module...` once per local rank and return 0, or the code of the rank that failed first.

    A rank that was killed by signal n gives 128 + n. Call it on the thread that lives as long as the process: ranks die
    with the thread that started them.
    """
    ranks = list[subprocess.Popen[bytes]]()
    try:
        for variables in environments(config):
            # A terminal's Ctrl+C is for the launcher alone, which hands it on.
            command = [sys.executable, "-u", "-m", *module]
            ranks.append(subprocess.Popen(command, env={**os.environ, **variables}, start_new_session=True))
        for rank, code in _ended(ranks):
            if code:
                logger.info("rank %d ended with exit code %d", rank, code, extra={"event": "rank_exit", "rank": rank})
                return code if code > 0 else 128 - code
        return int(enums.ExitCode.OK)
    finally:
        _end(ranks)


def environments(config: process_config.TrainerConfig) -> list[dict[str, str]]:
    """Return the variables of each rank of this node: who it is among all, and where they meet."""
    trainer = config.spec.trainer
    return [
        {
            "RANK": str(config.node_rank * trainer.processes_per_node + local),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": str(trainer.world_size),
            "LOCAL_WORLD_SIZE": str(trainer.processes_per_node),
            "GROUP_RANK": str(config.node_rank),
            "MASTER_ADDR": config.rendezvous_host,
            "MASTER_PORT": str(config.rendezvous_port),
        }
        for local in range(trainer.processes_per_node)
    ]


def _ended(ranks: Sequence["subprocess.Popen[bytes]"]) -> Iterator[tuple[int, int]]:
    """Yield local rank and return code of each rank as it ends."""
    ends = select.poll()
    ranks_by_fd = {os.pidfd_open(process.pid): rank for rank, process in enumerate(ranks)}
    try:
        for descriptor in ranks_by_fd:
            ends.register(descriptor, select.POLLIN)
        while ranks_by_fd:
            for descriptor, _ in ends.poll():
                ends.unregister(descriptor)
                rank = ranks_by_fd.pop(descriptor)
                os.close(descriptor)
                yield rank, ranks[rank].wait()
    finally:
        for descriptor in ranks_by_fd:
            os.close(descriptor)


def _end(ranks: Sequence["subprocess.Popen[bytes]"]) -> None:
    """End those that still run: asked first, killed after a while."""
    for process in ranks:
        process.terminate()
    end = time.monotonic() + _SHUTDOWN_S
    for process in ranks:
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
