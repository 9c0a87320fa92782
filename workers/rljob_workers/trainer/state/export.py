"""The model as bytes: the flat image of a weight version, and the Hugging Face folder at the end.

What is exported is what the forward uses (the module's weights), not the fp32 masters. One buffer, made once: first
touch of fresh memory is ten times slower than a copy into warm pages. All ranks call, rank 0 writes.
"""

import json
import pathlib
import shutil
from collections.abc import Callable, Sequence

import torch
from safetensors.torch import save_file

from rljob_api import errors, types
from rljob_workers.runtime import atomic

# Calls receive(name, whole tensor) for each name in order, on every rank; collective under ZeRO-3.
Visit = Callable[[Sequence[str], Callable[[str, torch.Tensor], None]], None]

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
# Bytes of tensors in one file of a folder: what writing one takes of memory on top of the image.
MOST_FILE_BYTES = 2 << 30
_WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.gguf")


class ImageExporter:
    """Fills the image of `layout` from the model."""

    def __init__(self, *, layout: types.Layout, visit: Visit, writes: bool) -> None:
        """`writes`: this rank keeps an image. Without it the rank only takes part in gathering."""
        self.layout = layout
        self._visit = visit
        self._image = bytearray(layout.image_bytes if writes else 0)
        self._views = self._tensors() if writes else {}

    @property
    def image(self) -> memoryview:
        """Return the buffer; empty on ranks that do not write."""
        return memoryview(self._image)

    def _tensors(self) -> dict[str, torch.Tensor]:
        flat = torch.frombuffer(self._image, dtype=torch.uint8)
        return {
            spec.name: flat[spec.offset : spec.offset + spec.length].view(_DTYPES[spec.dtype]).view(spec.shape)
            for spec in self.layout.tensors
        }

    def export(self) -> memoryview:
        """Fill the image and return it. Raises RLJobError naming the first tensor with NaN or Inf.

        Such a state would poison every rollout, and NaN is the "unchanged" mark of sparse loaders.
        """
        broken: list[str] = []

        def receive(name: str, tensor: torch.Tensor) -> None:
            if self._views:
                view = self._views[name]
                view.copy_(tensor)
                if not torch.isfinite(view.sum(dtype=torch.float32)):
                    broken.append(name)

        self._visit([spec.name for spec in self.layout.tensors], receive)
        if broken:
            raise errors.RLJobError(f"tensor {broken[0]} holds NaN or Inf; this state is not published")
        return self.image

    def write_hugging_face(
        self, model_dir: pathlib.Path, target: pathlib.Path, *, most_file_bytes: int = MOST_FILE_BYTES
    ) -> None:
        """Write the image as a Hugging Face folder: weights, and config and tokenizer files of `model_dir`. Atomic.

        Weights of more than `most_file_bytes` are several files with an index, written one after the other.
        """
        self.export()
        if not self._views:
            return
        with atomic.replaced_folder(target) as work:
            for path in sorted(model_dir.iterdir()):
                hidden = path.name.startswith(".")
                if path.is_file() and not hidden and not any(path.match(pattern) for pattern in _WEIGHT_FILES):
                    shutil.copyfile(path, work / path.name)
            _name_dtype(work / "config.json", self.layout.tensors[0].dtype)
            self._write_tensors(work, most_bytes=most_file_bytes)

    def _write_tensors(self, folder: pathlib.Path, *, most_bytes: int) -> None:
        groups = files_of(self.layout, most_bytes=most_bytes)
        place: dict[str, str] = {}
        for number, names in enumerate(groups, start=1):
            part = f"-{number:05d}-of-{len(groups):05d}" if len(groups) > 1 else ""
            file = f"model{part}.safetensors"
            save_file({name: self._views[name] for name in names}, folder / file, metadata={"format": "pt"})
            place |= dict.fromkeys(names, file)
        if len(groups) > 1:
            total = sum(spec.length for spec in self.layout.tensors)
            index = {"metadata": {"total_size": total}, "weight_map": place}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")


def files_of(layout: types.Layout, *, most_bytes: int) -> list[list[str]]:
    """Return the names of the tensors of each file, in image order: none above `most_bytes` but for a single tensor.

    Pure. Source of the files' names and of their index: transformers.
    """
    groups: list[list[str]] = []
    left = 0
    for spec in layout.tensors:
        if not groups or spec.length > left:
            groups.append([])
            left = most_bytes
        groups[-1].append(spec.name)
        left -= spec.length
    return groups


def _name_dtype(config: pathlib.Path, dtype: str) -> None:
    """Say in config.json what the weights alongside it are: engines that are set to "auto" load them in that
    format.
    """
    if not config.is_file():
        return
    values = json.loads(config.read_text(encoding="utf-8"))
    old = "torch_dtype" if "torch_dtype" in values and "dtype" not in values else "dtype"
    if values.get(old) != dtype:
        config.write_text(json.dumps({**values, old: dtype}, indent=2), encoding="utf-8")
