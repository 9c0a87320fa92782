"""`rljob plan` of the examples needs no network and no model of a hub; for GPUs it tells what is missing here."""

import json
import pathlib
from collections.abc import Callable

import pytest
from typer.testing import Result

from rljob_testing import examples

GPU = [path for path in sorted(examples.EXAMPLES.glob("*.yaml")) if "nvidia.com/gpu" in path.read_text()]


@pytest.mark.parametrize("path", sorted(examples.EXAMPLES.rglob("*-cpu.yaml")), ids=lambda path: path.stem)
def test_an_example_for_two_cores_is_planned_with_its_memory(rljob: Callable[..., Result], path: pathlib.Path) -> None:
    planned = rljob("plan", str(path))
    assert (planned.exit_code, planned.stderr) == (0, "")
    # One example's model is made before it, by a script of minutes.
    is_made_first = "name: ../../runs/" in path.read_text(encoding="utf-8")
    assert ("has no config.json on this machine" if is_made_first else "135 M parameters") in planned.stdout
    assert "warning" not in planned.stdout


@pytest.mark.parametrize("path", GPU, ids=lambda path: path.stem)
def test_an_example_for_gpus_is_planned_where_there_is_none_and_run_tells_what_is_missing(
    rljob: Callable[..., Result], path: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    planned = rljob("plan", str(path), "-o", "json")
    assert planned.exit_code == 0
    body = json.loads(planned.stdout)
    assert [line.split(":")[1].split()[0] for line in body["gpus"]] == ["nvidia.com/gpu", "nvidia.com/gpu"]
    assert any("but none is visible here" in warning for warning in body["warnings"])
    ran = rljob("run", str(path), "--run-dir", str(tmp_path / "run"))
    assert ran.exit_code == 2
    assert "but none is visible here" in ran.stderr
    assert not (tmp_path / "run" / "logs").exists()


def test_supervised_steps_are_planned_with_their_examples(rljob: Callable[..., Result]) -> None:
    planned = rljob("plan", str(examples.EXAMPLES / "addition-sft-cpu.yaml"), "-o", "json")
    assert json.loads(planned.stdout)["supervisedSteps"] == [
        "answers: 500 examples",
        "10 of 40 steps, 1 epochs; 50 examples a step, at most 5,200 tokens",
    ]
