"""Whole runs on this machine: a random two-layer Llama, real vLLM, DeepSpeed, gRPC, verifier and ledger."""

import pathlib
from collections.abc import Iterator

import pytest

from rljob_testing import jobs, models, runs


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> jobs.TinyTask:
    folder = tmp_path_factory.mktemp("tiny")
    models.make_tiny_llama(folder / "model")
    return jobs.make_task(folder)


@pytest.fixture
def rljob(tmp_path: pathlib.Path, tiny: jobs.TinyTask) -> Iterator[runs.Runs]:
    made = runs.Runs(tmp_path, tiny)
    yield made
    made.end()
