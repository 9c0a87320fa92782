"""An adapter as a folder that PEFT loads, and added to the model that it was trained on.

    W' = W + alpha / rank x B A      Hu et al. (arXiv:2106.09685), equation 3, for the weights that are exported

W is always that of the model files, never an earlier W': products and sum are in float32 and rounded once, so that what
is exported does not depend on how many versions came before.
"""

import contextlib
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from rljob_workers.weights import adapter

if TYPE_CHECKING:
    import peft

_WEIGHTS = "adapter_model.safetensors"


def write(folder: pathlib.Path, tensors: Mapping[str, torch.Tensor], config: "peft.LoraConfig") -> None:
    """Write what `peft.PeftModel.from_pretrained` reads. tensors: A and B by the names of an image."""
    config.save_pretrained(str(folder))
    save_file(dict(tensors), folder / _WEIGHTS, metadata={"format": "pt"})


def read(folder: pathlib.Path) -> dict[str, torch.Tensor]:
    """Return A and B of such a folder by the names of an image. Raises OSError."""
    tensors: dict[str, torch.Tensor] = load_file(folder / _WEIGHTS)
    return tensors


def merged(
    model_dir: pathlib.Path, names: Sequence[str], tensors: Mapping[str, torch.Tensor], *, scale: float
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the model's tensors of these names in this order: float32 where the adapter is added, else as they are in
    its files, one in memory at a time.

    tensors: A [rank, in] and B [out, rank] by the names of an image; scale: alpha / rank.
    """
    with contextlib.ExitStack() as stack:
        files = [
            stack.enter_context(safe_open(path, framework="pt")) for path in sorted(model_dir.glob("*.safetensors"))
        ]
        file_of = {name: file for file in files for name in file.keys()}  # noqa: SIM118  # no mapping
        for name in names:
            weight = file_of[name].get_tensor(name)
            a, b = adapter.tensors_of(name.removesuffix(".weight"))
            if a in tensors:
                # In place: of a large matrix one copy in float32 is enough.
                weight = (tensors[b].float() @ tensors[a].float()).mul_(scale).add_(weight)
            yield name, weight
