"""The files of a Hugging Face model: read by memory map and written a tensor at a time, so that none is held whole.

    u64 length of the header | header, JSON: name -> dtype, shape, [first, last) of its bytes | bytes, without holes

Pages of a mapped file belong to the page cache: processes of a machine share them, and the kernel drops them where it
needs memory. Source of the format: the README of safetensors.
"""

import contextlib
import dataclasses
import json
import mmap
import pathlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from rljob_api import errors

DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LENGTH = struct.Struct("<Q")
# The bytes of the first tensor begin at a multiple of this.
_ALIGNMENT = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A tensor of a file. dtype: as the file names it; first, last: its bytes in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    first: int
    last: int


def paths(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return the files of a model. Raises WeightsError if there is none."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise errors.WeightsError(f"{folder} holds no .safetensors file")
    return files


def num_bytes(folder: pathlib.Path) -> int:
    """Return the bytes of the files of a model, 0 without any."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def stored(path: pathlib.Path) -> list[Stored]:
    """Return what a file holds, in the order of its header."""
    with path.open("rb") as file:
        (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
        header: dict[str, Any] = json.loads(file.read(length))
    header.pop("__metadata__", None)
    start = _LENGTH.size + length
    return [
        Stored(
            name=name,
            dtype=entry["dtype"],
            shape=tuple(entry["shape"]),
            first=start + entry["data_offsets"][0],
            last=start + entry["data_offsets"][1],
        )
        for name, entry in header.items()
    ]


def mapped(path: pathlib.Path) -> Iterator[tuple[Stored, memoryview]]:
    """Yield the tensors of a file with their bytes, which are to be used before the next one is asked for."""
    entries = stored(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages:
        with memoryview(pages) as view:
            for entry in entries:
                with view[entry.first : entry.last] as data:
                    yield entry, data


class Writer:
    """Writes one file: the header at once, then the bytes of its tensors in order. A context manager."""

    def __init__(self, path: pathlib.Path, tensors: Sequence[tuple[str, str, tuple[int, ...], int]]) -> None:
        """tensors: name, dtype (`bfloat16`, `float16` or `float32`), shape and number of bytes of each."""
        self._path = path
        self._left = [(name, length) for name, _, _, length in tensors]
        self._left.reverse()
        header: dict[str, Mapping[str, object]] = {"__metadata__": {"format": "pt"}}
        first = 0
        for name, dtype, shape, length in tensors:
            header[name] = {
                "dtype": _NAMES[dtype],
                "shape": list(shape),
                "data_offsets": [first, first + length],
            }
            first += length
        text = json.dumps(header, separators=(",", ":")).encode()
        self._header = text + b" " * (-(_LENGTH.size + len(text)) % _ALIGNMENT)

    def __enter__(self) -> "Writer":
        with contextlib.ExitStack() as stack:
            self._file: BinaryIO = stack.enter_context(self._path.open("wb"))
            self._file.write(_LENGTH.pack(len(self._header)) + self._header)
            self._open = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._open.close()
        if kind is None and self._left:
            raise ValueError(f"{self._path} lacks {self._left[-1][0]}")

    def write(self, name: str, data: memoryview) -> None:
        """Write the next tensor. Raises ValueError for another one, or one of another size."""
        if not self._left or self._left[-1] != (name, len(data)):
            expected = "nothing" if not self._left else f"{self._left[-1][1]} bytes of {self._left[-1][0]}"
            raise ValueError(f"{self._path} takes {expected} next, not {len(data)} bytes of {name}")
        self._left.pop()
        self._file.write(data)
