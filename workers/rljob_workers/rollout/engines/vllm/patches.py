"""Corrections to upstream code, each with what is seen without it and the condition for its removal."""

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

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


def end_context(llm: "AsyncLLM") -> None:
    """After `shutdown` returned to the loop that the engine served: without it the threads of ZeroMQ stay until
    something collects the client of an engine that is gone, and Python warns of an "Unclosed context" there.

    `shutdown` leaves the sockets, without whose end a context does not end, to a callback of that loop, which comes
    before whatever awaits `shutdown`. Remove when vLLM's client ends its context. Seen in 0.32.
    """
    client: Any = llm.engine_core
    client.resources.ctx.term()


def time_tokens() -> None:
    """Before an engine is built: without it vLLM reports when the first and the last token of an answer came, and no
    other, unless every decode step makes an output of its own and wakes anyone who waits for the answer.

    Remove when its request statistics, or its final output, have a time for each token. Seen in 0.32.
    """
    from vllm.v1.engine import output_processor
    from vllm.v1.metrics.stats import RequestStateStats

    output_processor.RequestStateStats = timed(RequestStateStats)  # type: ignore[attr-defined]  # that is the patch


class _WithoutTorchvision(importlib.abc.MetaPathFinder):
    """Finds the one module that vLLM's LLaVA imports of torchvision's in the file of its twin for PIL."""

    NAME = "transformers.models.pixtral.image_processing_pixtral"
    TWIN = "transformers.models.pixtral.image_processing_pil_pixtral"

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.NAME:
            return None
        twin = importlib.util.find_spec(self.TWIN)
        return (
            None
            if twin is None or twin.origin is None
            else importlib.util.spec_from_file_location(fullname, twin.origin)
        )


def read_pictures_without_torchvision() -> None:
    """In each process before vLLM looks for a model's class: without it "No module named 'torchvision'" ends the start
    of a LLaVA, for a function that counts the patches of another model.

    torchvision's build for CPUs does not fit the torch of vLLM's wheel. Does nothing where it is installed, or a second
    time. Remove when vLLM's pixtral.py imports the function of `image_processing_pil_pixtral`. Seen in 0.32.
    """
    is_there = any(isinstance(finder, _WithoutTorchvision) for finder in sys.meta_path)
    if not is_there and importlib.util.find_spec("torchvision") is None:
        sys.meta_path.insert(0, _WithoutTorchvision())


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


def start_processes_with(processes: Callable[[], "BaseContext"], *, call: Callable[[Callable[[], Any]], Any]) -> None:
    """Before an engine is built: without it the engine process is a new interpreter that imports vLLM once more, and so
    is the one that asks a model's class for its properties where no cache has them. call: runs a function in a process.

    Workers of tensor parallelism stay as they are. Remove when vLLM starts its processes by a fork server. Seen in
    0.32.
    """
    from vllm.model_executor.models import registry
    from vllm.v1.engine import utils

    utils.get_mp_context = processes  # type: ignore[attr-defined]  # that is the patch
    registry._run_in_subprocess = call  # type: ignore[assignment]  # that is the patch


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


def allow_small_blocks() -> None:
    """Before a CPU engine is built: without it vLLM refuses blocks of 16 tokens ("No common block size"), for which its
    kernel `vec16` is made.

    Remove when its attention on CPUs says that it takes them. Seen in 0.32.
    """
    from vllm.v1.attention.backend import MultipleOf
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    def sizes(kv_cache_spec: object = None) -> list[int | MultipleOf]:  # noqa: ARG001  # vLLM's own name
        return [MultipleOf(16)]

    CPUAttentionBackend.get_supported_kernel_block_sizes = staticmethod(sizes)  # type: ignore[method-assign]  # the patch


def add_adapters_once() -> None:
    """Before a CPU engine is built: without it vLLM copies A and B of a layer once for each token that has an adapter,
    which takes a multiple of the seconds of the model itself; and a token without one gets the last slot's.

    Remove when its operations on CPUs multiply the tokens of an adapter at once. Seen in 0.32.
    """
    from vllm.lora.punica_wrapper import punica_cpu

    def sequences(indices: Any, lengths: Any) -> Any:
        return indices.repeat_interleave(lengths)

    def sgmv_shrink(x: Any, a: Any, y: Any, _starts: Any, lengths: Any, indices: Any, *rest: Any) -> None:
        shrink(x, a, y, sequences(indices, lengths), rest[-1])

    def sgmv_expand(x: Any, b: Any, y: Any, _starts: Any, lengths: Any, indices: Any, *rest: Any) -> None:
        expand(x, b, y, sequences(indices, lengths), rest[-1])

    def sgmv_expand_slice(x: Any, b: Any, y: Any, _starts: Any, lengths: Any, indices: Any, *rest: Any) -> None:
        expand_slice(x, b, y, sequences(indices, lengths), *rest[-3:])

    functions = {
        "bgmv_shrink": shrink, "bgmv_expand": expand, "bgmv_expand_slice": expand_slice,
        "sgmv_shrink": sgmv_shrink, "sgmv_expand": sgmv_expand, "sgmv_expand_slice": sgmv_expand_slice,
    }  # fmt: skip
    for name, function in functions.items():
        setattr(punica_cpu, name, function)


def shrink(x: Any, a: Any, y: Any, indices: Any, scale: float) -> None:
    """y[t] = scale x x[t] A^T with A of token t's slot. x [T, in], a [slots, 1, rank, in], y [T, rank]; indices [T],
    -1 for a token without an adapter, whose y stays.
    """
    for slot, rows in _slots(indices):
        y[rows] = scale * (x[rows].to(y.dtype) @ _matrix(a, slot).to(y.dtype).T)


def expand(x: Any, b: Any, y: Any, indices: Any, add_inputs: bool = True) -> None:
    """As `expand_slice`, for the first outputs of each token."""
    expand_slice(x, b, y, indices, 0, min(b.shape[-2], y.shape[1]), add_inputs)


def expand_slice(x: Any, b: Any, y: Any, indices: Any, offset: int, size: int, add_inputs: bool = True) -> None:
    """y[t, offset : offset + size] (+)= x[t] B^T with the B of token t's slot. x [T, rank], b [slots, 1, out, rank], y
    [T, all outputs].
    """
    for slot, rows in _slots(indices):
        part = x[rows].to(y.dtype) @ _matrix(b, slot).to(y.dtype)[:size].T
        place = slice(offset, offset + size)
        y[rows, place] = y[rows, place] + part if add_inputs else part


def _matrix(stacked: Any, slot: int) -> Any:
    matrix = stacked[slot]
    return matrix.squeeze(0) if matrix.ndim == 3 else matrix


def _slots(indices: Any) -> Iterator[tuple[int, Any]]:
    """Yield each slot and its tokens; a slice where all have the same, so that nothing is gathered."""
    first = int(indices[0]) if len(indices) else -1
    if bool((indices == first).all()):
        if first >= 0:
            yield first, slice(0, len(indices))
        return
    for slot in indices.unique().tolist():
        if slot >= 0:
            yield slot, indices == slot


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
