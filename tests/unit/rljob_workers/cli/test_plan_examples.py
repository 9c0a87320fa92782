"""`rljob plan` of the examples for two cores: no network, no model of a hub, no warning."""

import pathlib
from collections.abc import Callable

import pytest
from typer.testing import Result

from rljob_testing import examples


@pytest.mark.parametrize("path", sorted(examples.EXAMPLES.glob("*-cpu.yaml")), ids=lambda path: path.stem)
def test_an_example_for_two_cores_is_planned_with_its_memory(rljob: Callable[..., Result], path: pathlib.Path) -> None:
    planned = rljob("plan", str(path))
    assert (planned.exit_code, planned.stderr) == (0, "")
    assert "135 M parameters" in planned.stdout
    assert "warning" not in planned.stdout
