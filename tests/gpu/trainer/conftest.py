import pathlib
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from rljob_testing import trainer_makers


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return trainer_makers.make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[torch.device]:
    """A process group of this process alone, on the first GPU."""
    patch = pytest.MonkeyPatch()
    for name, value in {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}.items():
        patch.setenv(name, value)
    torch.cuda.set_device(0)
    store = dist.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    yield torch.device("cuda", 0)
    dist.destroy_process_group()
    patch.undo()
