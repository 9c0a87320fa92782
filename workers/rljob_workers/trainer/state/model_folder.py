"""Weights as a Hugging Face folder: files of bounded size, and config and tokenizer files of their model."""

import itertools
import json
import pathlib
import shutil
from collections.abc import Iterable

import torch
from safetensors.torch import save_file

from rljob_api import types

# Bytes of tensors in one file of a folder: what writing one takes of memory.
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

    tensors: by name, those of the layout in its order; those of one file are held at a time. Weights of more than
    `most_file_bytes` are several files with an index.
    """
    for path in sorted(model_dir.iterdir()):
        hidden = path.name.startswith(".")
        if path.is_file() and not hidden and not any(path.match(pattern) for pattern in _WEIGHT_FILES):
            shutil.copyfile(path, folder / path.name)
    _name_dtype(folder / "config.json", layout.tensors[0].dtype)
    groups = files_of(layout, most_bytes=most_file_bytes)
    place: dict[str, str] = {}
    stream = iter(tensors)
    for number, names in enumerate(groups, start=1):
        part = f"-{number:05d}-of-{len(groups):05d}" if len(groups) > 1 else ""
        file = f"model{part}.safetensors"
        in_file = dict(itertools.islice(stream, len(names)))
        assert list(in_file) == names, "in the order of the layout"
        save_file(in_file, folder / file, metadata={"format": "pt"})
        place |= dict.fromkeys(names, file)
    if len(groups) > 1:
        total = sum(spec.length for spec in layout.tensors)
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
