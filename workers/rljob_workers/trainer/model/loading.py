"""Loads a model with packed attention, and maps its tensors to those of its files.

The only user of transformers. It may fuse, split or rename tensors as it loads them.

A mixture of experts is one tensor of all experts in the model and one per expert and matrix in the files, which is what
the engine reads and a Hugging Face folder must hold. transformers keeps the rules by which it loaded a model and can
apply them backwards, a tensor at a time: under ZeRO-3 no more than that is whole at once.
"""

import logging
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import transformers
from PIL import Image
from transformers import core_model_loading

from rljob_api import errors, types
from rljob_api.manifest.job import JobSpec
from rljob_workers.models import families, vision
from rljob_workers.runtime import machine
from rljob_workers.trainer.model import adapters, attention, cpu_float32_matmul, sight

logger = logging.getLogger(__name__)


class SavedNames:
    """The tensors of one model, under both names. Make it while they are whole: it distinguishes them by their
    shapes.
    """

    def __init__(self, lm: Any, tensors: Mapping[str, torch.Tensor]) -> None:
        """`tensors`: parameters and buffers by the model's names."""
        self._lm = lm
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._source: dict[str, str] = {}
        self._converted: set[str] = set()
        for name, tensor in tensors.items():
            hollow = torch.empty_like(tensor, device="meta")
            saved = self._revert(name, hollow)
            if list(saved.values()) != [hollow] or name not in saved:
                self._converted.add(name)
            for saved_name, part in saved.items():
                self._source[saved_name] = name
                self._shapes[saved_name] = tuple(part.shape)

    def _revert(self, name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
        # The function has no annotations.
        return core_model_loading.revert_weight_conversion(self._lm, {name: tensor})  # type: ignore[no-any-return]

    def source(self, saved_name: str) -> str:
        """Return the model's name of the tensor that a tensor of the files is, or is a part of. Raises WeightsError."""
        if saved_name not in self._source:
            raise errors.WeightsError(f"the model has no tensor {saved_name}, which its files hold")
        return self._source[saved_name]

    def parts(self, name: str, tensor: torch.Tensor) -> Mapping[str, torch.Tensor]:
        """Return a whole tensor of the model as its files have it: under one name or several, views where it can be."""
        return self._revert(name, tensor) if name in self._converted else {name: tensor}

    def problem(self, layout: types.Layout, trained: Iterable[str]) -> str:
        """Return why these files and this model do not hold the same tensors, empty if they do.

        trained: the model's names of its parameters. One that no file fills would start at random; a tied one counts
        as filled by its twin, so it must not be among them.
        """
        for spec in layout.tensors:
            shape = self._shapes.get(spec.name)
            if shape is None:
                return f"its files hold {spec.name}, for which the model has no place"
            if shape != tuple(spec.shape):
                return f"its files hold {spec.name} with shape {list(spec.shape)} where the model has {list(shape)}"
        filled = {self._source[spec.name] for spec in layout.tensors}
        lacking = [name for name in trained if name not in filled]
        return f"its files lack {lacking[0]}, which would start at random" if lacking else ""


def load_model(
    model_dir: pathlib.Path,
    spec: JobSpec,
    device: torch.device,
    *,
    name: str = "",
    frozen: bool = False,
    adapter: adapters.Adapter | None = None,
) -> torch.nn.Module:
    """Return the causal LM of a Hugging Face folder with packed attention. Raises ManifestError if that cannot be.

    name: of the model in errors, by default spec.model.name. frozen: without gradients nothing is checkpointed.
    adapter: what is trained instead of the model's own weights.
    """
    name = name or spec.model.name
    families.check(
        name,
        model_dir,
        longest=spec.rollout.engine.max_model_len,
        adapted=adapter is not None,
        shows=spec.data.has_pictures,
    )
    config = families.read(model_dir)
    reads_pictures = vision.reads_pictures(config)
    kind = transformers.AutoModelForImageTextToText if reads_pictures else transformers.AutoModelForCausalLM
    transformers.utils.logging.disable_progress_bar()
    transformers.AttentionInterface.register(attention.NAME, attention.packed_attention)
    try:
        # The annotation leaves out that it returns a pair when it is asked for what it found in the files.
        model_and_info: Any = kind.from_pretrained(
            str(model_dir),
            dtype=getattr(torch, spec.trainer.dtype),
            attn_implementation=attention.of_parts(config),
            trust_remote_code=spec.model.trust_remote_code,
            local_files_only=True,
            output_loading_info=True,
        )
        model, loading = model_and_info
    except (OSError, ValueError) as error:
        raise errors.ManifestError(f"spec.model.name is {name!r}, but does not load: {error}") from error
    if lacking := sorted(loading["missing_keys"]):
        raise errors.ManifestError(
            f"spec.model.name is {name!r}, but its files lack {lacking[0]}"
            f" ({len(lacking)} tensors of {type(model).__name__}), which would start at random"
        )
    model.config.get_text_config().use_cache = False
    if reads_pictures:
        sight.freeze(model)
    if adapter is not None:
        adapters.add(model, adapter)
    _widen_where_slow(model, spec.trainer.dtype, device)
    if spec.trainer.gradient_checkpointing and not frozen:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    loaded: torch.nn.Module = model.train()
    return loaded


def pixels_of(lm: Any, model_dir: pathlib.Path) -> sight.Pixels | None:
    """Return what brings a picture to the size and range that the model's tower was made for, None for a model without
    one. Raises ManifestError if its folder does not say which.
    """
    if not vision.reads_pictures(lm.config.to_dict()):
        return None
    try:
        # Of PIL and numpy: the other kind wants torchvision, and the engine computes the same with this one.
        processor: Any = transformers.AutoImageProcessor.from_pretrained(
            str(model_dir), local_files_only=True, backend="pil"
        )
    except (OSError, ValueError) as error:
        raise errors.ManifestError(
            f"spec.model.name: {model_dir} does not say how pictures are prepared ({error}); give a folder with the"
            " files that the processor's save_pretrained writes"
        ) from error

    def pixels(picture: Image.Image) -> torch.Tensor:
        prepared: torch.Tensor = processor([picture], return_tensors="pt")["pixel_values"]
        return prepared

    return pixels


def _widen_where_slow(model: torch.nn.Module, dtype: str, device: torch.device) -> None:
    if device.type != "cpu" or machine.dtype_for_this_cpu(dtype) == dtype:
        return
    if cpu_float32_matmul.widen(model):
        logger.info("this CPU has no instructions for %s: its products are computed in float32", dtype)
    else:
        logger.warning("this CPU has no instructions for %s, and this model cannot do without: it will be slow", dtype)
