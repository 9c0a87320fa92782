"""The page on the command line: each line in its blocks is run, and each command and option is on it."""

import os
import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Callable

import pytest
import typer
from typer.testing import Result

from rljob_testing import examples
from rljob_testing.fake_kubectl import FakeKubectl
from rljob_workers.cli.app import app
from rljob_workers.local.rundir import layout

ROOT = examples.ROOT
PAGE = (ROOT / "docs/command_line.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
LINES = [line for block in BLOCKS for line in block.splitlines()]
JOB = "addition-cpu"
# These would train, or serve until they are interrupted: their words are parsed, nothing is started.
STARTS_PROCESSES = ("run", "eval", "ui")
RLJOB = {
    "metadata": {"name": JOB, "namespace": "research"},
    "spec": {"maxSteps": 1},
    "status": {"summary": "Complete", "conditions": []},
}


@pytest.fixture
def prepared(run: layout.RunDir, dumped: Callable[..., None], kubectl: FakeKubectl, tmp_path: pathlib.Path) -> None:
    """A finished run of the example, here and in a cluster."""
    (tmp_path / "crds").symlink_to(ROOT / "crds")
    (run.path / "export" / "config.json").write_text("{}\n")
    (run.logs / "rollout.jsonl").write_text("a line\n")
    (run.logs / "trainer.jsonl").write_text("a line\n")
    dumped("g00000001")
    dumped("e00000001", kind="eval-rollout")
    run.path.rename(run.path.with_name(JOB))
    kubectl.answers(f"get rljobs.rljob.dev {JOB}", RLJOB)
    has_failed = {
        "type": "Failed",
        "status": "True",
        "reason": "StallTimeout",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    kubectl.answers(
        "get rljobs.rljob.dev failed",
        {**RLJOB, "metadata": {"name": "failed"}, "status": {"conditions": [has_failed]}},
    )
    kubectl.answers("patch rljobs.rljob.dev failed", "rljob.rljob.dev/failed patched\n")
    pod = {"metadata": {"name": f"{JOB}-trainer-0"}}
    kubectl.answers("get pods", {"items": [pod]})
    kubectl.answers("get events", {"items": []})
    kubectl.answers("apply", "rljob.rljob.dev/dapo serverside-applied\n")
    kubectl.answers(f"logs {JOB}-trainer-0", "2026-01-01T00:00:00Z hello\n")


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize("line", LINES)
def test_every_line_of_the_page_runs(rljob: Callable[..., Result], line: str) -> None:
    program, *words = shlex.split(line)
    prog_name = "rljob"
    if program == "kubectl":
        assert words.pop(0) == "rljob"
        prog_name = "kubectl rljob"
    else:
        assert program == "rljob"
    result = rljob(*words, *(["--help"] if words[0] in STARTS_PROCESSES else []), prog_name=prog_name)
    assert (result.exit_code, result.exception) == (0, None), result.output


def test_every_command_stands_on_the_page() -> None:
    commands = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]  # a group has commands
    assert commands == {shlex.split(line)[1] for line in LINES if line.startswith("rljob")}


def test_no_option_is_named_that_does_not_exist() -> None:
    group = typer.main.get_command(app)
    commands = [group, *group.commands.values()]  # type: ignore[attr-defined]  # a group has commands
    known = {word for command in commands for param in command.params for word in param.opts} | {"--help"}
    named = set(re.findall(r"(?<![\w-])--[a-z][-a-z]+", PAGE))
    assert named <= known, f"the page names {sorted(named - known)}"


def test_completion_of_the_plug_in_answers_as_kubectl_asks(run: layout.RunDir, tmp_path: pathlib.Path) -> None:
    (script,) = re.findall(r"^```bash\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    folder = pathlib.Path(sys.executable).parent
    done = subprocess.run(
        ["/bin/sh", "-c", script, "kubectl_complete-rljob", "why", "sm"], cwd=tmp_path, capture_output=True, text=True,
        timeout=60, check=True, env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.stdout.split() == ["small", ":4"]
