"""Run directories as runs leave them, made by hand, and the command line in this process."""

import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence

import pytest
from typer.testing import CliRunner, Result

from rljob_testing.fake_kubectl import FakeKubectl
from rljob_testing.run_folders import dump_row, finished_run
from rljob_workers.cli.app import app
from rljob_workers.local.rundir import layout

Rows = Sequence[Mapping[str, object]]


@pytest.fixture
def rljob(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Return the command line; it runs in a folder of its own, where `runs/` is."""
    monkeypatch.chdir(tmp_path)
    return lambda *words, prog_name="rljob": CliRunner().invoke(app, list(words), prog_name=prog_name)


@pytest.fixture
def run(tmp_path: pathlib.Path) -> layout.RunDir:
    """Return the directory of a finished run of one step, without dumps and logs."""
    return finished_run(tmp_path)


@pytest.fixture
def dumped(run: layout.RunDir) -> Callable[..., None]:
    """Return what appends a row to the dumps of `run`, in the form of docs/design/workflows.md#s-10."""

    return functools.partial(dump_row, run)


@pytest.fixture
def kubectl(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> FakeKubectl:
    """Return the `kubectl` that commands find."""
    folder = tmp_path_factory.mktemp("bin")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return FakeKubectl(folder)
