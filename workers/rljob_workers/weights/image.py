"""The image of a version: one flat buffer in wire dtype, its layout, its hashes. Pure but for reading model files.

The wire dtype is the job's (`spec.model.dtype`), whatever the files hold: updates that bfloat16 rounds away are served
only if the wire is float32, and float32 files of a bfloat16 job would travel at twice the bytes for nothing.
Image order: embeddings, layers ascending, final norm, head, so that a layer-wise loader buffers one layer at most.
Tensors start on 64-byte boundaries. Tied weights appear once. Hashes are over bytes defined here, never over
protobuf: xxh3-128 per tensor, BLAKE3 over the layout id and all digests in image order.
"""

import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import blake3
import numpy
import xxhash

from rljob_api import errors, types
from rljob_workers.weights import safetensors_file

ALIGNMENT = 64
_LAYER = re.compile(r"\.(?:layers|h|blocks)\.(\d+)\.")
WIDTHS = {"bfloat16": 2, "float16": 2, "float32": 4}
# Elements; a large embedding would need gigabytes in addition.
_CONVERTED_AT_ONCE = 8 << 20


def image_order(name: str) -> tuple[int, int, str]:
    """Return the sort key of a tensor name: embeddings, layers ascending, the rest, head last."""
    layer = _LAYER.search(name)
    if layer:
        return 1, int(layer.group(1)), name
    if "embed" in name or ".wte." in name:
        return 0, 0, name
    return (3 if name.startswith("lm_head") else 2), 0, name


def make_layout(
    tensors: Iterable[tuple[str, str, tuple[int, ...]]],
    tied: Mapping[str, tuple[str, ...]] | None = None,
    *,
    base: str = "",
) -> types.Layout:
    """Return the layout of (name, dtype name, shape) triples. `tied` lists, per stored name, the names sharing it;
    `base` says what the tensors of an adapter are added to.

    Raises WeightsError for a dtype that the wire does not know.
    """
    specs, offset = [], 0
    for name, dtype, shape in sorted(tensors, key=lambda tensor: image_order(tensor[0])):
        if dtype not in WIDTHS:
            raise errors.WeightsError(f"tensor {name} has dtype {dtype}; expected one of {', '.join(WIDTHS)}")
        length = WIDTHS[dtype]
        for size in shape:
            length *= size
        specs.append(
            types.TensorSpec(
                name=name, dtype=dtype, shape=shape, offset=offset, length=length, tied=(tied or {}).get(name, ())
            )
        )
        offset += -(-length // ALIGNMENT) * ALIGNMENT
    return types.Layout(layout_id=layout_id(specs, base), tensors=tuple(specs), image_bytes=offset, base=base)


def layout_id(tensors: Iterable[types.TensorSpec], base: str = "") -> str:
    """Return BLAKE3 over name, dtype, shape, offset, length and tied names of each tensor in image order, hex; before
    them `base`, where there is one.
    """
    digest = blake3.blake3((base + "\x1d").encode() if base else b"")
    for tensor in tensors:
        shape = ",".join(str(size) for size in tensor.shape)
        row = (tensor.name, tensor.dtype, shape, str(tensor.offset), str(tensor.length), ",".join(tensor.tied))
        digest.update(("\x1f".join(row) + "\x1e").encode())
    return digest.hexdigest()


def num_elements(layout: types.Layout) -> int:
    """Return how many numbers an image of this layout holds."""
    return sum(tensor.length // WIDTHS[tensor.dtype] for tensor in layout.tensors)


def digests(image: memoryview, layout: types.Layout, only: Iterable[int] | None = None) -> dict[int, bytes]:
    """Return xxh3-128 of each tensor's raw bytes, by index in the layout; `only` limits the indices."""
    indices = range(len(layout.tensors)) if only is None else only
    by_index = {}
    for index in indices:
        tensor = layout.tensors[index]
        by_index[index] = xxhash.xxh3_128_digest(image[tensor.offset : tensor.offset + tensor.length])
    return by_index


def state_hash(layout: types.Layout, tensor_digests: Mapping[int, bytes]) -> str:
    """Return BLAKE3 over the layout id and all digests in image order, hex. Raises KeyError if one is missing."""
    digest = blake3.blake3(layout.layout_id.encode())
    for index in range(len(layout.tensors)):
        digest.update(tensor_digests[index])
    return digest.hexdigest()


def verify(image: memoryview, layout: types.Layout, version: types.WeightVersion) -> None:
    """Check that `image` is `version`. Raises DigestError naming the first tensor that differs."""
    if version.layout_id != layout.layout_id:
        raise errors.WeightsError(f"version {version.version} has another layout")
    actual = digests(image, layout)
    for index, tensor in enumerate(layout.tensors):
        if index in version.digests and version.digests[index] != actual[index]:
            raise errors.DigestError(f"tensor {tensor.name} of version {version.version} does not match its digest")
    if state_hash(layout, actual) != version.state_hash:
        raise errors.DigestError(f"version {version.version} does not match its state hash")


def layout_from_safetensors(directory: pathlib.Path, dtype: str) -> types.Layout:
    """Return the layout in `dtype` of a Hugging Face folder; tied weights stand in it once.

    Raises WeightsError for a folder without such files and for a tensor that is no floating-point number.
    """
    tensors = []
    for path in safetensors_file.paths(directory):
        for entry in safetensors_file.stored(path):
            if entry.dtype not in safetensors_file.DTYPES:
                raise errors.WeightsError(
                    f"tensor {entry.name} has dtype {entry.dtype}; expected one of {', '.join(safetensors_file.DTYPES)}"
                )
            tensors.append((entry.name, dtype, entry.shape))
    return make_layout(tensors)


def files_hash(directory: pathlib.Path) -> str:
    """Return BLAKE3 over name, dtype, shape and digest of each tensor of a Hugging Face folder by name, hex; however
    the tensors are divided among files. Raises WeightsError for a folder without such files.
    """
    rows: list[tuple[str, bytes]] = []
    for path in safetensors_file.paths(directory):
        for entry, data in safetensors_file.mapped(path):
            rows.append((f"{entry.name}\x1f{entry.dtype}\x1f{list(entry.shape)}", xxhash.xxh3_128_digest(data)))
    digest = blake3.blake3()
    for row, tensor_digest in sorted(rows):
        digest.update(row.encode() + b"\x1e" + tensor_digest)
    return digest.hexdigest()


def tensors_of_files(directory: pathlib.Path, layout: types.Layout) -> Iterator[tuple[int, Iterable[memoryview]]]:
    """Yield the index of each tensor of a Hugging Face folder in the layout, in the order of the files, and its bytes
    in the wire dtype in pieces. A piece is to be used before the next one is asked for.
    """
    index_of = {tensor.name: index for index, tensor in enumerate(layout.tensors)}
    for path in safetensors_file.paths(directory):
        for entry, data in safetensors_file.mapped(path):
            index = index_of[entry.name]
            yield index, converted(data, safetensors_file.DTYPES[entry.dtype], layout.tensors[index].dtype)


def converted(source: memoryview, source_dtype: str, dtype: str) -> Iterator[memoryview]:
    """Yield the bytes of numbers in another format in pieces, rounded to the nearest, ties to even, as torch does.
    Equal formats: one piece, which is the source.
    """
    if source_dtype == dtype:
        yield source
        return
    width = WIDTHS[source_dtype] * _CONVERTED_AT_ONCE
    for start in range(0, len(source), width):
        yield _from_float32(_to_float32(source[start : start + width], source_dtype), dtype)


def _to_float32(source: memoryview, dtype: str) -> "numpy.ndarray[Any, Any]":
    if dtype == "bfloat16":
        return (numpy.frombuffer(source, numpy.uint16).astype(numpy.uint32) << 16).view(numpy.float32)
    # A copy: an array that looks into a mapped file would keep it open.
    return numpy.frombuffer(source, numpy.float16 if dtype == "float16" else numpy.float32).astype(numpy.float32)


def _from_float32(numbers: "numpy.ndarray[Any, Any]", dtype: str) -> memoryview:
    if dtype == "bfloat16":
        bits = numbers.view(numpy.uint32)
        # Half of the last place, and a tie goes to the even neighbour. What is no number must not become infinite.
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)
        rounded[numpy.isnan(numbers)] = 0x7FC0
        return rounded.data.cast("B")
    with numpy.errstate(over="ignore"):
        return numbers.astype(numpy.float16 if dtype == "float16" else numpy.float32).data.cast("B")


def initial_manifest(job: str, layout: types.Layout, tensor_digests: Mapping[int, bytes]) -> types.WeightVersion:
    """Return the manifest of version 0, whose tensors have these digests."""
    return types.WeightVersion(
        job=job,
        version=types.VersionId(0),
        step=0,
        attempt=0,
        parent=types.NO_VERSION,
        created_at=0.0,
        layout_id=layout.layout_id,
        digests=tensor_digests,
        state_hash=state_hash(layout, tensor_digests),
        exporter="model-files",
    )
