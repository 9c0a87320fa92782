"""What runs inside vLLM's engine process: an executor that dies with us, and the weight engines that load an image.

Own file because vLLM imports it by name in its child process; besides the weight engines nothing else of ours is
imported there.
"""

import multiprocessing
import os
from typing import Any

from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.platforms import current_platform
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from rljob_workers.rollout.engines.vllm import adapter_engine, image_engine, patches
from rljob_workers.runtime import boot, machine

# What a backend of vLLM's weight transfer is called here, and what it loads.
WEIGHTS, ADAPTER = "rljob_image", "rljob_adapter"
_ENGINES = {WEIGHTS: image_engine.ImageWeightEngine, ADAPTER: adapter_engine.AdapterWeightEngine}


def register_weight_engines() -> None:
    """Make the backends known in this process. vLLM refuses a second registration of a name, hence the question."""
    for name, engine in _ENGINES.items():
        if name not in WeightTransferEngineFactory._registry:
            WeightTransferEngineFactory.register_engine(name, engine)


def _die_with_rollout() -> None:
    boot.die_with_parent()
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        # It was gone before the kernel knew that we care.
        os._exit(1)


class RolloutExecutor(UniProcExecutor):
    """One worker inside the engine process: one process and one torch fewer, and no shared-memory hop per step.

    On CPU the OpenMP variables are set by the rollout before it starts this process.
    """

    def _init_executor(self) -> None:
        _die_with_rollout()
        if current_platform.is_cpu():
            patches.add_adapters_once()
            patches.allow_small_blocks()
        patches.read_pictures_without_torchvision()
        register_weight_engines()
        super()._init_executor()
        if current_platform.is_cpu():
            # An update copies and repacks all weights: with fresh pages each time that takes a third longer. Not before
            # the model is loaded, of which what is packed last would find no place between what was freed: that took
            # 9.99 GiB for 5.9 GiB of weights.
            machine.keep_memory()


class RolloutMultiprocExecutor(MultiprocExecutor):
    """Several workers, for tensor parallelism. The workers notice the death of this process by themselves."""

    supports_pp = True

    def _init_executor(self) -> None:
        _die_with_rollout()
        super()._init_executor()


class WorkerExtension:
    """Methods that vLLM adds to its worker; called through collective RPC. Names must not clash with the worker's."""

    def rljob_install_weight_engine(self) -> None:
        """Attach the weight engine to a worker whose process did not pass through `RolloutExecutor`."""
        worker: Any = self
        if worker.weight_transfer_engine is None:
            engine_class = _ENGINES[WEIGHTS if worker.vllm_config.lora_config is None else ADAPTER]
            worker.weight_transfer_engine = engine_class(
                worker.vllm_config.weight_transfer_config,
                worker.vllm_config,
                worker.device,
                worker.model_runner.get_model(),
            )

    def rljob_finish_adapter(self) -> None:
        """Finish the update of an adapter. vLLM's own end of an update takes new weights for granted, and removes all
        adapters.
        """
        worker: Any = self
        worker.weight_transfer_engine.finish_weight_update()
        worker._weight_update_active = False

    def rljob_reset_reload(self) -> int:
        """Put back the kernel tensors of layers that a failed update left loading; return how many there were."""
        worker: Any = self
        worker._weight_update_active = False
        engine = worker.weight_transfer_engine
        assert isinstance(engine, image_engine.ImageWeightEngine)
        return engine.reset_reload()
