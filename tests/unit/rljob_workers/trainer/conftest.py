import pathlib

import pytest
import torch

from rljob_testing import ports, trainer_makers


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return trainer_makers.make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def free_port() -> int:
    (port,) = ports.free_ports(1)
    return port
