"""torchrun's agent, called as a library: the ranks of this node, one attempt, and the exit code that they end with."""

import logging
import sys
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from rljob_api import enums, process_config

logger = logging.getLogger(__name__)

_RENDEZVOUS_S = 900
# Ranks that wait for one that failed hang in a collective; they are given this long before SIGKILL.
_SHUTDOWN_S = 5


def run_ranks(config: process_config.TrainerConfig, module: Sequence[str]) -> int:
    """Run `python -m module...` once per local rank and return 0, or the code of the rank that failed first.

    A rank that was killed by signal n gives 128 + n. Restarts are the launcher's business, not torchrun's: each is an
    attempt of its own, fenced by number.
    """
    for noisy in ("torch.distributed.elastic", "torch.distributed.run", "torch.distributed.launcher"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # Its report of a failed child repeats what the child has logged.
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
    launch = elastic_launch(config=launch_config(config), entrypoint=sys.executable)
    try:
        launch("-u", "-m", *module)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        code = int(failure.exitcode)
        logger.info("rank %d ended with exit code %d", rank, code, extra={"event": "rank_exit", "rank": rank})
        return code if code > 0 else 128 - code
    return int(enums.ExitCode.OK)


def launch_config(config: process_config.TrainerConfig) -> LaunchConfig:
    """Return torchrun's settings: fixed nodes, no restarts, no signal handlers of its own."""
    return LaunchConfig(
        min_nodes=config.spec.trainer.nodes,
        max_nodes=config.spec.trainer.nodes,
        nproc_per_node=config.spec.trainer.processes_per_node,
        run_id=f"{config.job.uid}-{config.attempt}",
        role="trainer",
        rdzv_backend="static",
        rdzv_endpoint=f"{config.rendezvous_host}:{config.rendezvous_port}",
        rdzv_configs={"rank": config.node_rank, "timeout": _RENDEZVOUS_S},
        max_restarts=0,
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(),
        # The program has its own handlers for the signals that people send.
        signals_to_handle="SIGQUIT",
        shutdown_timeout=_SHUTDOWN_S,
    )
