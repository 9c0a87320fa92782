"""Weights as a Hugging Face folder: files of bounded size, and config and tokenizer files of their model."""

import json
import pathlib
import shutil
from collections.abc import Iterable

import torch

from rljob_api import types
from rljob_workers.weights import safetensors_file

# Bytes of tensors in one file of a folder.
MOST_FILE_BYTES = 2 << 30
_WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.gguf")


def write(
    folder: pathlib.Path,
    layout: types.Layout,
    tensors: Iterable[tuple[str, torch.Tensor]],
    *,
    model_dir: pathlib.Path,
    most_file_bytes: int = MOST_FILE_BYTES,
) -> None:
    """Write weights, and config and tokenizer files of `model_dir`, into a folder.

    tensors: by name, those of the layout in its order; one is held at a time. Weights of more than `most_file_bytes`
    are several files with an index. Raises ValueError for other tensors than the layout's.
    """
    for path in sorted(model_dir.iterdir()):
        hidden = path.name.startswith(".")
        if path.is_file() and not hidden and not any(path.match(pattern) for pattern in _WEIGHT_FILES):
            shutil.copyfile(path, folder / path.name)
    _name_dtype(folder / "config.json", layout.tensors[0].dtype)
    groups = files_of(layout, most_bytes=most_file_bytes)
    place: dict[str, str] = {}
    stream = iter(tensors)
    for number, specs in enumerate(groups, start=1):
        part = f"-{number:05d}-of-{len(groups):05d}" if len(groups) > 1 else ""
        file = f"model{part}.safetensors"
        rows = [(spec.name, spec.dtype, spec.shape, spec.length) for spec in specs]
        with safetensors_file.Writer(folder / file, rows) as writer:
            for _ in specs:
                _write(writer, *next(stream))
        place |= {spec.name: file for spec in specs}
    if len(groups) > 1:
        total = sum(spec.length for spec in layout.tensors)
        index = {"metadata": {"total_size": total}, "weight_map": place}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")


def _write(writer: safetensors_file.Writer, name: str, tensor: torch.Tensor) -> None:
    """Its own function, so that the tensor is gone before the next one is made."""
    writer.write(name, tensor.contiguous().view(-1).view(torch.uint8).numpy().data)


def files_of(layout: types.Layout, *, most_bytes: int) -> list[list[types.TensorSpec]]:
    """Return the tensors of each file, in image order: none above `most_bytes` but for a single tensor.

    Pure. Source of the files' names and of their index: transformers.
    """
    groups: list[list[types.TensorSpec]] = []
    left = 0
    for spec in layout.tensors:
        if not groups or spec.length > left:
            groups.append([])
            left = most_bytes
        groups[-1].append(spec)
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
