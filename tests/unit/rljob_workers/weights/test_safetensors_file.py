"""Files of a model: what is written a tensor at a time is what the library of the format reads."""

import pathlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from rljob_workers.weights import safetensors_file

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)


def bytes_of(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.contiguous().view(-1).view(torch.uint8).numpy())


def write(path: pathlib.Path, tensors: dict[str, torch.Tensor]) -> None:
    rows = [
        (name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.nbytes)
        for name, tensor in tensors.items()
    ]
    with safetensors_file.Writer(path, rows) as writer:
        for name, tensor in tensors.items():
            writer.write(name, bytes_of(tensor))


@given(tensors=st.lists(st.tuples(SHAPES, st.sampled_from(sorted(DTYPES))), min_size=1, max_size=5))
def test_what_is_written_is_read_by_the_library_of_the_format_and_by_us(
    tensors: list[tuple[tuple[int, ...], str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("file") / "model.safetensors"
    held = {f"tensor {index}": torch.rand(shape).to(DTYPES[dtype]) for index, (shape, dtype) in enumerate(tensors)}
    write(path, held)
    found = load_file(path)
    assert found.keys() == held.keys()
    assert all(torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in held.items())
    for entry, data in safetensors_file.mapped(path):
        assert entry.shape == tuple(held[entry.name].shape)
        assert bytes(data) == bytes(bytes_of(held[entry.name]))
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_a_file_that_lacks_a_tensor_is_refused_by_its_name(tmp_path: pathlib.Path) -> None:
    rows = [("a", "bfloat16", (2,), 4), ("b", "bfloat16", (2,), 4)]
    with (
        pytest.raises(ValueError, match=r"model\.safetensors lacks b"),
        safetensors_file.Writer(tmp_path / "model.safetensors", rows) as writer,
    ):
        writer.write("a", memoryview(b"1234"))


def test_bytes_of_another_number_than_was_announced_are_refused(tmp_path: pathlib.Path) -> None:
    with (
        pytest.raises(ValueError, match="takes 4 bytes of a next, not 3 bytes of a"),
        safetensors_file.Writer(tmp_path / "model.safetensors", [("a", "bfloat16", (2,), 4)]) as writer,
    ):
        writer.write("a", memoryview(b"123"))
