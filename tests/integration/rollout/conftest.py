"""One real vLLM engine on CPU with a tiny random model, shared by the tests that leave it whole."""

import os
import pathlib
from collections.abc import Iterator

import pytest

from rljob_testing import models
from rljob_testing.engine_rig import Rig
from rljob_workers.runtime import device


@pytest.fixture(scope="session", autouse=True)
def _engine_environment() -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(device.engine_environment(num_threads=1, kind="cpu"))
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def make_rig() -> type[Rig]:
    """For tests with a model of their own."""
    return Rig


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[pathlib.Path]:
    """The same tiny model with four sets of weights; tied, as SmolLM2 is."""
    root = tmp_path_factory.mktemp("models")
    return [models.make_tiny_llama(root / str(seed), seed=seed) for seed in range(4)]


@pytest.fixture(scope="session")
def rig(folders: list[pathlib.Path]) -> Iterator[Rig]:
    made = Rig(folders[0])
    for version, folder in enumerate(folders):
        if version:
            made.store.publish(version, folder, made.stager.layout)
    yield made
    made.close()
