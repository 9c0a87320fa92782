"""`--figures FOLDER`: where the acceptance writes what it measured (default: build/gpu)."""

import pathlib
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from rljob_testing import gpu, trainer_makers


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--figures", type=pathlib.Path, default=pathlib.Path("build/gpu"), help="where figures are written"
    )


@pytest.fixture(scope="session")
def figures(pytestconfig: pytest.Config) -> gpu.Figures:
    # Where this file is not among the first that pytest reads, it does not know the option.
    return gpu.Figures(pytestconfig.getoption("figures", default=pathlib.Path("build/gpu")))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return trainer_makers.make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[torch.device]:
    """A process group of this process alone, on the first GPU. DeepSpeed keeps the first that it sees."""
    patch = pytest.MonkeyPatch()
    accelerator = "cuda" if gpu.HAS_GPU else "cpu"
    variables = {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1", "DS_ACCELERATOR": accelerator}
    for name, value in variables.items():
        patch.setenv(name, value)
    if gpu.HAS_GPU:
        torch.cuda.set_device(0)
    store = dist.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)  # type: ignore[attr-defined]  # not in its list of names
    dist.init_process_group("nccl" if gpu.HAS_GPU else "gloo", store=store, rank=0, world_size=1)
    yield gpu.DEVICE
    dist.destroy_process_group()
    patch.undo()
