"""An adapter (LoRA) as an image: which tensors it has, what they are added to, what they begin as. Pure but for files.

A version of an adapter is a version like any other whose layout holds A [rank, in] and B [out, rank] of each adapted
layer, by the names that PEFT gives them in its files. The layout names the base, the hash of the model files, so that
an adapter never reaches an engine that would add it to something else.

The first B is zero, so version 0 computes what the model files hold. The first A is uniform within 1 / sqrt(in), as
PEFT draws it (Kaiming's bound for a = sqrt(5)), but from a hash of seed and name: every process of a run makes the same
bytes, whatever its libraries, and so does a run that begins again.
"""

import dataclasses
import pathlib
import re
from collections.abc import Iterable, Iterator

import blake3
import numpy

from rljob_api import errors, types
from rljob_api.manifest.model import ALL_LINEAR, LoraSpec
from rljob_workers.weights import image as images

# What PEFT puts before the names of a model's tensors in its files.
PEFT_PREFIX = "base_model.model."
_LAYERS = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.\d+\.")
_DIGITS = 24


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedLayer:
    """A linear layer with an adapter: its name in the model files without `.weight`, and its sizes."""

    name: str
    num_in: int
    num_out: int

    @property
    def kind(self) -> str:
        """Return what the layer is called in each block of the model, such as q_proj."""
        return self.name.rsplit(".", 1)[-1]


def tensors_of(layer: str) -> tuple[str, str]:
    """Return the names of A and B of a layer in an image, which are those in a file of PEFT."""
    return f"{PEFT_PREFIX}{layer}.lora_A.weight", f"{PEFT_PREFIX}{layer}.lora_B.weight"


def adapted_layers(files: types.Layout, lora: LoraSpec, *, name: str) -> list[AdaptedLayer]:
    """Return the layers that get an adapter, in image order. files: layout of the model files.

    Raises ManifestError for a target that the model, `name` in the manifest, does not have.
    """
    layers = list(_linear_layers(files))
    kinds = {layer.kind for layer in layers}
    lacking = [target for target in lora.targets if target not in kinds and target != ALL_LINEAR]
    if lacking or not layers:
        raise errors.ManifestError(
            f"spec.model.lora.targets is {list(lora.targets)}, but {name} has no linear layers"
            f" {', '.join(lacking)}; it has {', '.join(sorted(kinds)) or 'none that an adapter can be added to'}"
        )
    return [layer for layer in layers if ALL_LINEAR in lora.targets or layer.kind in lora.targets]


def _linear_layers(files: types.Layout) -> Iterator[AdaptedLayer]:
    """Yield the matrices of the model's blocks: embeddings and head stand outside of them, norms are vectors."""
    for tensor in files.tensors:
        if tensor.name.endswith(".weight") and len(tensor.shape) == 2 and _LAYERS.search(tensor.name):
            num_out, num_in = tensor.shape
            yield AdaptedLayer(name=tensor.name.removesuffix(".weight"), num_in=num_in, num_out=num_out)


def layout_of(folder: pathlib.Path, lora: LoraSpec, *, dtype: str, name: str) -> types.Layout:
    """Return the layout of an adapter of the model in `folder`, in `dtype`. Raises ManifestError, WeightsError."""
    files = images.layout_from_safetensors(folder, dtype)
    tensors = []
    for layer in adapted_layers(files, lora, name=name):
        a, b = tensors_of(layer.name)
        tensors += [(a, dtype, (lora.rank, layer.num_in)), (b, dtype, (layer.num_out, lora.rank))]
    return images.make_layout(tensors, base=images.files_hash(folder))


def initial_tensors(layout: types.Layout, seed: int) -> Iterator[tuple[int, Iterable[memoryview]]]:
    """Yield the adapter that a run begins with, as images.tensors_of_files does a model: A from the seed, B zero."""
    for index, tensor in enumerate(layout.tensors):
        if tensor.name.endswith(".lora_B.weight"):
            yield index, [memoryview(bytes(tensor.length))]
        else:
            values = _uniform(f"{seed}\x1f{tensor.name}", tensor.shape[0] * tensor.shape[1], tensor.shape[1] ** -0.5)
            yield index, images.converted(values.data.cast("B"), "float32", tensor.dtype)


def _uniform(key: str, count: int, bound: float) -> "numpy.ndarray[tuple[int], numpy.dtype[numpy.float32]]":
    """Return `count` float32 numbers, uniform in [-bound, bound), that follow from the key alone."""
    words = numpy.frombuffer(blake3.blake3(key.encode()).digest(length=4 * count), dtype="<u4")
    # As many bits as float32 keeps exactly.
    units = (words >> (32 - _DIGITS)).astype(numpy.float32) * numpy.float32(2.0**-_DIGITS)
    return (2 * units - 1) * numpy.float32(bound)
