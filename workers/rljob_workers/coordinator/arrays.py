"""Between the flat views of `rljob_api.types` and numpy, without a copy: rows are built from whole runs of tokens."""

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from rljob_api import types

Array: TypeAlias = "np.ndarray[tuple[int], np.dtype[Any]]"


def ints(values: types.Ints) -> Array:
    """Return an int32 array on the memory of a view."""
    return np.frombuffer(values, dtype=np.int32)


def floats(values: types.Floats) -> Array:
    """Return a float32 array on the memory of a view."""
    return np.frombuffer(cast("memoryview[int]", values), dtype=np.float32)


def view(values: Array) -> "memoryview[Any]":
    """Return the flat view of an array: int32 or float32, as the types name it."""
    return memoryview(cast(Any, values))


def joined(parts: Sequence[Array], dtype: type[np.generic]) -> "memoryview[Any]":
    """Return one view of all parts in order; empty where there is none."""
    return view(np.concatenate(parts).astype(dtype, copy=False) if parts else np.empty(0, dtype))
