"""What trackers of services decide without their packages: names, parameters, and what is said where one is missing."""

import importlib.util
import posixpath
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import errors, process_config
from rljob_api.manifest import trackers
from rljob_workers.coordinator import __main__ as program
from rljob_workers.coordinator.trackers import base, mlflow
from rljob_workers.local.checks import missing

LIBRARIES = [options.library for options in trackers.OPTIONS.values() if options.library]


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("train/rewards/right", "train/rewards/right"),
        ("eval/held out/pass@4", "eval/held out/pass_4"),
        ("a:b-c.d_e/é", "a:b-c.d_e/é"),
        ("/a//b/./../", "_/a/_/b/_/__/_"),
        ("x" * 300, "x" * 250),
    ],
)
def test_mlflow_gets_names_that_it_takes(name: str, taken: str) -> None:
    assert mlflow.allowed(name) == taken


@given(st.text(min_size=1, max_size=300))
def test_every_name_is_made_one_that_mlflow_takes(name: str) -> None:
    taken = mlflow.allowed(name)
    assert mlflow.allowed(taken) == taken
    assert posixpath.normpath(taken) == taken
    assert not taken.startswith(("/", ".."))


def test_parameters_are_the_values_of_the_spec_by_path_and_bounded() -> None:
    spec = {
        "maxSteps": 3, "model": {"name": "m", "revision": None}, "tags": ["a", "b"],
        "rewards": [{"name": "right", "weight": 0.5}, {"name": "short"}], "long": "x" * 600,
    }  # fmt: skip
    assert mlflow.parameters(spec) == {
        "maxSteps": "3", "model.name": "m", "model.revision": "null", "tags": '["a", "b"]', "rewards.0.name": "right",
        "rewards.0.weight": "0.5", "rewards.1.name": "short", "long": "x" * 500,
    }  # fmt: skip
    assert len(mlflow.parameters({str(number): number for number in range(2000)})) == 1000


@pytest.fixture
def without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> object:
        return None if name in LIBRARIES else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


@pytest.mark.usefixtures("without_packages")
@pytest.mark.parametrize("type_", LIBRARIES)
def test_a_tracker_whose_package_is_not_installed_is_refused_with_the_command_that_installs_it(
    type_: str, make_config: Callable[..., process_config.CoordinatorConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_config(trackers=[{"name": "mine", "type": type_}, {"name": "b", "type": "tensorboard"}])
    (problem,) = missing.tracker_packages(config.spec)
    assert problem.startswith(f"spec.observability.trackers[mine].type is '{type_}', whose package is not installed")
    assert f"pip install 'rljob[{type_}]'" in problem
    with pytest.raises(errors.ManifestError, match="whose package is not installed here"):
        base.find(config.spec.observability.trackers[0])
    assert program.check(config) == 2
    assert capsys.readouterr().err == f"error: {problem}\n"


def test_a_folder_of_the_packages_name_in_the_working_directory_is_no_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # W&B writes `wandb` where a script runs.
    origin_less = importlib.util.spec_from_loader("wandb", loader=None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: origin_less)
    spec = trackers.TrackerSpec.model_validate({"name": "mine", "type": "wandb"})
    assert "pip install 'rljob[wandb]'" in trackers.missing_library(spec)


def test_the_coordinator_imports_no_package_of_a_tracker_also_where_it_looks_for_one() -> None:
    check = f"""
import sys
from rljob_api.manifest import trackers
from rljob_workers.coordinator import app
from rljob_workers.coordinator.trackers import base
for type_ in trackers.OPTIONS:
    base.find(trackers.TrackerSpec.model_validate({{"name": "mine", "type": type_}}))
print(*sorted(set({LIBRARIES!r}) & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout == "\n"
