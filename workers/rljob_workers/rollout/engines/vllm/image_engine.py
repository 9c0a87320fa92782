"""The weight engine inside vLLM's engine process: loads a mapped image of all weights.

It receives no bytes: the rollout has fetched and verified one flat image in shared memory, this side maps it read-only
and feeds vLLM's loaders tensor by tensor (dense layer-wise reload, the one way that works for prepacked CPU and
quantised layers). It counts what the loaders take: `finish` refuses unless every tensor of the layout was consumed
exactly once and no layer is half loaded. Loaded names are not compared: fused parameters rename them.
"""

import collections
import contextlib
import functools
import mmap
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import _place_kernel_tensors, get_layerwise_info

from rljob_workers.rollout.engines.vllm import patches
from rljob_workers.rollout.sync import image_buffer

# How files name the tensors of what is in front of a text model.
_TOWERS = ("vision_tower.", "model.vision_tower.")


@dataclass
class ImageInitInfo(WeightTransferInitInfo):
    """Where the image lies, by a path that this process can open, its size, and where progress is written."""

    path: str
    num_bytes: int
    progress_path: str


@dataclass
class ImageUpdateInfo(WeightTransferUpdateInfo):
    """The layout of the image that is to be loaded: four lists of equal length, in image order. alpha: of an adapter,
    0 where the image holds all weights.
    """

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    offsets: list[int]
    alpha: int = 0


class ImageWeightEngine(WeightTransferEngine[ImageInitInfo, ImageUpdateInfo]):
    """Dense layer-wise reload from the mapped image."""

    init_info_cls = ImageInitInfo
    update_info_cls = ImageUpdateInfo
    supports_draft_weight_update = False

    _image: torch.Tensor | None = None
    _progress: int = -1
    _expected: tuple[str, ...] = ()

    def init_transfer_engine(self, init_info: ImageInitInfo) -> None:
        """Map the image, pages present at once: a page fault later would be part of the pause."""
        self._image = _map_image(init_info.path, init_info.num_bytes)
        self._progress = os.open(init_info.progress_path, os.O_WRONLY)

    def start_weight_update(self) -> None:
        """Take the layers' tensors away and put counting loaders in."""
        self._expected = ()
        self._consumed: collections.Counter[str] = collections.Counter()
        self._current = ""
        if self.device.type == "cpu":
            patches.pack_experts_again()
        initialize_layerwise_reload(self.model)
        for parameter in self.model.parameters():
            loader = getattr(parameter, "weight_loader", None)
            # vLLM keeps its wrapped loaders from one update to the next, and ours with them.
            if loader is not None and not getattr(loader, "rljob_counts", False):
                parameter.weight_loader = self._counting(loader)  # type: ignore[attr-defined]

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load the whole image. Overridden: the base class ends in an accelerator call that CPU builds do not have."""
        if self.device.type == "cpu":
            with _every_core():
                self.receive_weights(self.parse_update_info(update_info))
        else:
            self.receive_weights(self.parse_update_info(update_info))
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: ImageUpdateInfo) -> None:
        """Feed the model's loaders. Raises what a loader raises; the model is then a mixture."""
        self._expected = tuple(update_info.names)
        model: Any = self.model
        model.load_weights(self.tensors(update_info))
        self._current = ""

    def finish_weight_update(self) -> None:
        """Check consumption, then let vLLM finish. Raises RuntimeError that names tensors or layers."""
        skipped = {"lm_head.weight"} if getattr(self.model_config.hf_config, "tie_word_embeddings", False) else set()
        counts = {name: self._consumed[name] for name in self._expected if name not in skipped}
        # Layers of a tower behind the one that is read have no place in vLLM; they are frozen.
        counts = {name: count for name, count in counts.items() if count or not name.startswith(_TOWERS)}
        wrong = {name: count for name, count in counts.items() if count != 1}
        if not self._expected or wrong:
            raise RuntimeError(f"tensors not consumed exactly once (name: count): {dict(list(wrong.items())[:5])}")
        tied = self._tied_layers()
        with patches.quiet_reload():
            finalize_layerwise_reload(self.model, self.model_config)
        for layer in tied:
            # vLLM puts a tied layer's parameter back without processing it: on CPU its packed copy would stay old.
            if isinstance(method := getattr(layer, "quant_method", None), QuantizeMethodBase):
                method.process_weights_after_loading(layer)
        left = [name for name, layer in self.model.named_modules() if get_layerwise_info(layer).can_load()]
        meta = [name for name, parameter in self.model.named_parameters() if parameter.is_meta]
        if left or meta:
            raise RuntimeError(f"layers left in loading state: {left[:5]}, parameters without storage: {meta[:5]}")

    def _tied_layers(self) -> list[torch.nn.Module]:
        """Return layers that received nothing because they share parameters. Raises RuntimeError if they do not."""
        layers = list(self.model.named_modules())
        loaded = {id(p) for _, layer in layers if not _is_untouched(layer) for p in _kernel_parameters(layer)}
        untouched = [(name, layer) for name, layer in layers if _is_untouched(layer)]
        lost = [name for name, layer in untouched if any(id(p) not in loaded for p in _kernel_parameters(layer))]
        if lost:
            raise RuntimeError(f"{len(lost)} layers received nothing, e.g. {lost[:5]}")
        return [layer for _, layer in untouched]

    def reset_reload(self) -> int:
        """Undo the bookkeeping of a broken update so that a complete one can run; the weights stay mixed until then."""
        broken = [layer for layer in self.model.modules() if get_layerwise_info(layer).can_load()]
        for layer in broken:
            info = get_layerwise_info(layer)
            if info.kernel_tensors is not None:
                _place_kernel_tensors(layer, info)
            info.reset()
        return len(broken)

    def shutdown(self) -> None:
        self._image = None
        if self._progress >= 0:
            os.close(self._progress)
            self._progress = -1

    def tensors(self, info: ImageUpdateInfo) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors of the image as views, and write down how far that has come."""
        assert self._image is not None, "init_weight_transfer_engine comes first"
        for name, dtype, shape, offset in zip(info.names, info.dtypes, info.shapes, info.offsets, strict=True):
            kind = getattr(torch, dtype)
            count = functools.reduce(lambda left, right: left * right, shape, 1)
            self._current = name
            os.pwrite(self._progress, image_buffer.PROGRESS.pack(offset), 0)
            yield name, self._image[offset : offset + count * kind.itemsize].view(kind).view(shape)

    def _counting(self, loader: Callable[..., Any]) -> Callable[..., Any]:
        # The name of the wrapped function is how vLLM recognises its own wrapper; functools.wraps keeps it.
        @functools.wraps(loader)
        def count(*args: Any, **kwargs: Any) -> Any:
            self._consumed[self._current] += 1
            return loader(*args, **kwargs)

        count.rljob_counts = True  # type: ignore[attr-defined]
        return count


@contextlib.contextmanager
def _every_core() -> Iterator[None]:
    """Copy and repack with all cores: nothing else of this engine runs during a pause, and the pause is what counts."""
    own = torch.get_num_threads()
    torch.set_num_threads(max(own, len(os.sched_getaffinity(0))))
    try:
        yield
    finally:
        torch.set_num_threads(own)


def _is_untouched(layer: torch.nn.Module) -> bool:
    info = get_layerwise_info(layer)
    loadable = any(parameter.numel() for parameter in layer.parameters(recurse=False))
    return info.can_load() and loadable and info.load_numel == 0


def _kernel_parameters(layer: torch.nn.Module) -> list[torch.Tensor]:
    kernel = get_layerwise_info(layer).kernel_tensors
    return list(kernel[0].values()) if kernel is not None else list(layer.parameters(recurse=False))


def _map_image(path: str, num_bytes: int) -> torch.Tensor:
    descriptor = os.open(path, os.O_RDONLY)
    with contextlib.closing(os.fdopen(descriptor, "rb", closefd=True)) as handle:
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        mapped = mmap.mmap(handle.fileno(), num_bytes, flags=flags, prot=mmap.PROT_READ)
    with warnings.catch_warnings():
        # torch warns that the buffer is read-only, which is the point.
        warnings.simplefilter("ignore", UserWarning)
        return torch.frombuffer(mapped, dtype=torch.uint8)
