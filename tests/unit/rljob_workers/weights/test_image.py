import dataclasses
import json
import pathlib
import struct

import pytest

from rljob_api import errors
from rljob_testing import local_weights
from rljob_workers.weights import image


def write_safetensors(path: pathlib.Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    header, position = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + len(data)]}
        position += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    write_safetensors(
        tmp_path / "model-2.safetensors",
        {
            "model.norm.weight": ("BF16", [2], b"NNNN"),
            "model.layers.10.mlp.weight": ("BF16", [2, 1], b"tttt"),
            "lm_head.weight": ("BF16", [1], b"HH"),
        },
    )
    write_safetensors(
        tmp_path / "model-1.safetensors",
        {
            "model.layers.2.mlp.weight": ("BF16", [2], b"2222"),
            "model.embed_tokens.weight": ("BF16", [3], b"EEEEEE"),
        },
    )
    return tmp_path


def test_image_order_is_embeddings_layers_ascending_norm_head(folder: pathlib.Path) -> None:
    layout = image.layout_from_safetensors(folder, "bfloat16")
    assert [tensor.name for tensor in layout.tensors] == [
        "model.embed_tokens.weight",
        "model.layers.2.mlp.weight",
        "model.layers.10.mlp.weight",
        "model.norm.weight",
        "lm_head.weight",
    ]


@pytest.mark.covers("weights 3")
def test_tensors_start_on_64_byte_boundaries_and_hold_the_files_bytes(folder: pathlib.Path) -> None:
    layout, _, data = local_weights.initial_version(folder, "job", "bfloat16")
    assert [tensor.offset for tensor in layout.tensors] == [0, 64, 128, 192, 256]
    assert [bytes(data[t.offset : t.offset + t.length]) for t in layout.tensors] == [
        b"EEEEEE",
        b"2222",
        b"tttt",
        b"NNNN",
        b"HH",
    ]


def test_image_that_is_the_version_passes(folder: pathlib.Path) -> None:
    layout, version, data = local_weights.initial_version(folder, "job", "bfloat16")
    image.verify(memoryview(data), layout, version)


def test_changed_byte_is_named_by_its_tensor(folder: pathlib.Path) -> None:
    layout, version, data = local_weights.initial_version(folder, "job", "bfloat16")
    data[192] ^= 1
    with pytest.raises(errors.DigestError, match=r"model\.norm\.weight"):
        image.verify(memoryview(data), layout, version)


def test_padding_between_tensors_is_not_part_of_the_state(folder: pathlib.Path) -> None:
    layout, version, data = local_weights.initial_version(folder, "job", "bfloat16")
    data[63] ^= 1
    image.verify(memoryview(data), layout, version)


def test_manifest_whose_state_hash_was_changed_is_refused(folder: pathlib.Path) -> None:
    layout, version, data = local_weights.initial_version(folder, "job", "bfloat16")
    with pytest.raises(errors.DigestError, match="state hash"):
        image.verify(memoryview(data), layout, dataclasses.replace(version, state_hash="0" * 64))


def test_layout_id_depends_on_shape_and_dtype() -> None:
    one = image.make_layout([("a", "bfloat16", (4, 2))])
    assert one.layout_id != image.make_layout([("a", "bfloat16", (2, 4))]).layout_id
    assert one.layout_id != image.make_layout([("a", "float16", (4, 2))]).layout_id


def test_dtype_that_the_wire_does_not_know_is_refused() -> None:
    with pytest.raises(errors.WeightsError, match="float8.*expected one of bfloat16"):
        image.make_layout([("a", "float8", (1,))])


def test_integers_are_refused_by_name(tmp_path: pathlib.Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", {"mask": ("I64", [1], bytes(8))})
    with pytest.raises(errors.WeightsError, match="mask has dtype I64"):
        image.layout_from_safetensors(tmp_path, "bfloat16")


NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
# Ties both ways, a carry into the exponent, subnormals of each format, the largest numbers, infinities, no number.
SPECIAL = [0.0, -0.0, 1.00390625, 1.01171875, 0.999999, 1e-8, -6e-8, 1e-40, 65504.0, 65520.0, 3.3e38, 3.4e38]


@pytest.mark.parametrize("files", NAMES)
@pytest.mark.parametrize("dtype", NAMES)
def test_every_pair_of_formats_is_converted_as_torch_converts(files: str, dtype: str, tmp_path: pathlib.Path) -> None:
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(5)
    numbers = torch.cat([torch.randn(1000, generator=generator), torch.tensor([*SPECIAL, float("inf"), -float("inf")])])
    held = numbers.to(getattr(torch, files))
    save_file({"model.norm.weight": held}, tmp_path / "model.safetensors")
    layout, _, data = local_weights.initial_version(tmp_path, "job", dtype)
    spec = layout.tensors[0]
    assert (spec.dtype, spec.length) == (dtype, len(numbers) * image.WIDTHS[dtype])
    found = torch.frombuffer(data, dtype=getattr(torch, dtype), count=len(numbers))
    assert torch.equal(found.view(torch.uint8), held.to(getattr(torch, dtype)).view(torch.uint8))


def test_a_number_that_is_none_stays_none_in_bfloat16() -> None:
    nan = memoryview(b"\xff\xff\xff\x7f")
    assert [bytes(piece) for piece in image.converted(nan, "float32", "bfloat16")] == [b"\xc0\x7f"]


def test_conversion_in_pieces_is_conversion_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy

    source = memoryview(numpy.arange(1000, dtype=numpy.float32)).cast("B")
    whole = list(image.converted(source, "float32", "float16"))
    monkeypatch.setattr(image, "_CONVERTED_AT_ONCE", 7)
    pieces = list(image.converted(source, "float32", "float16"))
    assert (len(whole), len(pieces)) == (1, -(-1000 // 7))
    assert b"".join(whole) == b"".join(pieces) == numpy.arange(1000, dtype=numpy.float16).tobytes()


def test_folder_without_weights_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.WeightsError, match=r"no \.safetensors"):
        image.layout_from_safetensors(tmp_path, "bfloat16")
