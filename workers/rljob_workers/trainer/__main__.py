"""`rljob-trainer --config role.json`: starts this node's ranks and returns their exit code.

The code of the rank that failed first is what this program ends with. SIGTERM and SIGINT are handed on to the ranks,
which stop after the current step.
"""

import os
import pathlib
import signal
import sys
from collections.abc import Sequence

from rljob_api import enums, errors, plugins, process_config
from rljob_workers.runtime import boot, device
from rljob_workers.trainer import launch, stop

_RANK_MODULE = "rljob_workers.trainer.worker"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the trainer; return the exit code of its ranks."""
    invocation = boot.parse(
        process_config.TrainerConfig,
        program="rljob-trainer",
        about="Trains the policy of one RL run: takes packed batches, publishes weight versions, keeps checkpoints.",
        argv=argv,
    )
    problems = [*check(invocation.config), *_without_device(invocation.config)]
    if invocation.check:
        for problem in problems:
            print(f"error: {problem}", file=sys.stderr)
        return int(enums.ExitCode.BAD_INPUT if problems else enums.ExitCode.OK)
    if problems:
        return boot.refuse(problems)
    stopping = stop.Stop()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stopping.hand_on())
    boot.configure_process(invocation.config)
    if invocation.config.spec.storage.checkpoint_uri is not None:
        code = boot.run_check(lambda: check_store(invocation.config))
        if code:
            return code
    os.environ.update(rank_environment(invocation.config))
    ranks = [_RANK_MODULE, "--config", str(invocation.config_path.absolute())]
    return stopping.code(launch.run_ranks(invocation.config, ranks))


def check(config: process_config.TrainerConfig) -> list[str]:
    """Return what is wrong with a config beyond its types."""
    from rljob_workers.trainer.engine import deepspeed_config

    try:
        deepspeed_config.make(config.spec.trainer)
    except errors.ManifestError as error:
        return list(error.problems)
    loss = config.spec.algorithm.loss
    if loss.type == "custom":
        refusal = plugins.problem(plugins.LOSSES, loss.name or "", field="spec.algorithm.loss.name")
        if refusal:
            return [refusal]
    folder = pathlib.Path(config.checkpoint_dir)
    return [f"spec.checkpoint: {folder} is not a folder"] if folder.exists() and not folder.is_dir() else []


def check_store(config: process_config.TrainerConfig) -> None:
    """Write to the object store of checkpoints and read it, before anything is trained that could not be kept.

    Raises StorageAccessError that names the field where keys or bucket are wrong, StorageError where nothing answers.
    """
    from rljob_workers.objects import preflight
    from rljob_workers.trainer.state import remote

    folder = remote.folder_of(config)
    assert folder is not None, "the manifest names a store"
    try:
        preflight.check(folder)
    except errors.StorageError as error:
        where = f"spec.storage.checkpoints.uri is {config.spec.storage.checkpoint_uri!r}"
        raise type(error)(f"{where}, but the trainer {error}") from None


def _without_device(config: process_config.TrainerConfig) -> list[str]:
    return device.problems(
        config.device,
        needed=config.spec.trainer.processes_per_node,
        because=f"spec.trainer.processesPerNode {config.spec.trainer.processes_per_node}",
        image=device.image_kind(),
        engine=None,
        num_visible=len(device.gpus()),
    )


def rank_environment(config: process_config.TrainerConfig) -> dict[str, str]:
    """Return what ranks need in their environment: threads, and no search for accelerators where none is wanted."""
    variables = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": str(config.num_threads or 1)}
    if config.num_threads == 0 and config.spec.trainer.processes_per_node == 1:
        del variables["OMP_NUM_THREADS"]
    # DeepSpeed looks for one at import and warns if there is none.
    if config.device == "cpu" or (config.device == "auto" and not device.gpus()):
        variables["DS_ACCELERATOR"] = "cpu"
    return variables


if __name__ == "__main__":
    sys.exit(main())
