import pathlib
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from rljob_testing import ports, trainer_makers


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    return {
        dtype: trainer_makers.make_tiny_model(tmp_path_factory.mktemp(dtype), dtype=dtype)
        for dtype in ("float32", "bfloat16")
    }


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of this process alone."""
    torch.set_num_threads(1)
    patch = pytest.MonkeyPatch()
    for name, value in {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1", "DS_ACCELERATOR": "cpu"}.items():
        patch.setenv(name, value)
    store = dist.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)  # type: ignore[attr-defined]  # not in its list of names
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    from deepspeed.utils import groups

    dist.destroy_process_group()
    # DeepSpeed keeps a copy of the first group that it sees, and would use it in the next module of this process.
    groups._WORLD_GROUP = None
    patch.undo()


@pytest.fixture
def free_ports() -> list[int]:
    """Ports for a handful of programs."""
    return ports.free_ports(8)
