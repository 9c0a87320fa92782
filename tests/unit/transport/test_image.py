import dataclasses
import json
import pathlib
import struct

import pytest

from rljob_api import errors
from rljob_workers.transport import image


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
            "model.layers.2.mlp.weight": ("F32", [1], b"2222"),
            "model.embed_tokens.weight": ("BF16", [3], b"EEEEEE"),
        },
    )
    return tmp_path


def test_image_order_is_embeddings_layers_ascending_norm_head(folder: pathlib.Path) -> None:
    layout = image.layout_from_safetensors(folder)
    assert [tensor.name for tensor in layout.tensors] == [
        "model.embed_tokens.weight",
        "model.layers.2.mlp.weight",
        "model.layers.10.mlp.weight",
        "model.norm.weight",
        "lm_head.weight",
    ]


def test_tensors_start_on_64_byte_boundaries_and_hold_the_files_bytes(folder: pathlib.Path) -> None:
    layout, _, data = image.initial_version(folder, "job")
    assert [tensor.offset for tensor in layout.tensors] == [0, 64, 128, 192, 256]
    assert [bytes(data[t.offset : t.offset + t.length]) for t in layout.tensors] == [
        b"EEEEEE",
        b"2222",
        b"tttt",
        b"NNNN",
        b"HH",
    ]


def test_image_that_is_the_version_passes(folder: pathlib.Path) -> None:
    layout, version, data = image.initial_version(folder, "job")
    image.verify(memoryview(data), layout, version)


def test_changed_byte_is_named_by_its_tensor(folder: pathlib.Path) -> None:
    layout, version, data = image.initial_version(folder, "job")
    data[192] ^= 1
    with pytest.raises(errors.DigestError, match=r"model\.norm\.weight"):
        image.verify(memoryview(data), layout, version)


def test_padding_between_tensors_is_not_part_of_the_state(folder: pathlib.Path) -> None:
    layout, version, data = image.initial_version(folder, "job")
    data[63] ^= 1
    image.verify(memoryview(data), layout, version)


def test_manifest_whose_state_hash_was_changed_is_refused(folder: pathlib.Path) -> None:
    layout, version, data = image.initial_version(folder, "job")
    with pytest.raises(errors.DigestError, match="state hash"):
        image.verify(memoryview(data), layout, dataclasses.replace(version, state_hash="0" * 64))


def test_layout_id_depends_on_shape_and_dtype() -> None:
    one = image.make_layout([("a", "bfloat16", (4, 2))])
    assert one.layout_id != image.make_layout([("a", "bfloat16", (2, 4))]).layout_id
    assert one.layout_id != image.make_layout([("a", "float16", (4, 2))]).layout_id


def test_dtype_that_the_wire_does_not_know_is_refused() -> None:
    with pytest.raises(errors.WeightsError, match="float8.*known: bfloat16"):
        image.make_layout([("a", "float8", (1,))])


def test_folder_without_weights_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.WeightsError, match=r"no \.safetensors"):
        image.layout_from_safetensors(tmp_path)
