"""Corrections to upstream code, each with what is seen without it and the condition for its removal."""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.metrics.stats import RequestStateStats

_RELOAD_LOGGER = "vllm.model_executor.model_loader.reload.layerwise"


def disarm_finaliser(llm: "AsyncLLM") -> None:
    """After `shutdown`: without it every process ends with "Exception ignored in AsyncLLM.__del__".

    Its finaliser shuts down a second time while the interpreter is being taken apart. Remove when vLLM's `__del__`
    tolerates an engine that was shut down. Seen in 0.32.
    """
    llm.shutdown = _nothing  # type: ignore[method-assign]  # that is the patch


def _nothing(timeout: float | None = None) -> None:
    del timeout


def time_tokens() -> None:
    """Before an engine is built: without it vLLM reports when the first and the last token of an answer came, and no
    other, unless every decode step makes an output of its own and wakes anyone who waits for the answer.

    Remove when its request statistics, or its final output, have a time for each token. Seen in 0.32.
    """
    from vllm.v1.engine import output_processor
    from vllm.v1.metrics.stats import RequestStateStats

    output_processor.RequestStateStats = timed(RequestStateStats)  # type: ignore[attr-defined]  # that is the patch


def timed(stats: type[Any]) -> type[Any]:
    """Return a class of `stats`, vLLM's statistics of a request, whose `token_ts` has the time of each token [T].

    vLLM first adds a step's tokens to `num_generation_tokens`, then sets `last_token_ts`, in seconds of the engine's
    clock.
    """

    class Timed(stats):  # type: ignore[misc]  # the base is imported with vllm
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.token_ts: list[float] = []
            super().__init__(*args, **kwargs)

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "last_token_ts":
                self.token_ts += [value] * (self.num_generation_tokens - len(self.token_ts))

    return Timed


def token_times_s(stats: "RequestStateStats | None", *, count: int) -> Sequence[float]:
    """Return when each of an answer's `count` tokens came; nothing without statistics. A step may sample more tokens
    than the answer keeps.
    """
    times: list[float] = getattr(stats, "token_ts", [])
    return times[:count]


def pack_experts_again() -> None:
    """Before an update: without it a CPU engine computes with experts whose weights its kernels cannot read, and every
    token is nats off. vLLM packs them in the first load alone: an update copies them as they are.

    Remove when `UnquantizedFusedMoEMethod` has its experts process their weights in every load. Seen in 0.32.
    """
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

    set_up = UnquantizedFusedMoEMethod._setup_kernel
    if getattr(set_up, "packs_again", False):
        return

    def set_up_and_pack(self: Any, layer: Any, w13: Any, w2: Any) -> None:
        is_update = self.moe_kernel is not None
        set_up(self, layer=layer, w13=w13, w2=w2)
        if is_update and isinstance(self.moe_kernel.fused_experts, CPUUnquantizedExperts):
            self.moe_kernel.fused_experts.process_weights_after_loading(layer)

    set_up_and_pack.packs_again = True  # type: ignore[attr-defined]  # known again by the next call
    UnquantizedFusedMoEMethod._setup_kernel = set_up_and_pack  # type: ignore[method-assign]  # that is the patch


@contextlib.contextmanager
def quiet_reload() -> Iterator[None]:
    """Around finishing a reload: without it each update logs "Failed to load weights" for tied and weightless layers.

    We check consumption ourselves and raise. Remove when vLLM does not warn about layers without checkpoint tensors.
    """
    reload_logger = logging.getLogger(_RELOAD_LOGGER)
    before = reload_logger.level
    reload_logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        reload_logger.setLevel(before)
