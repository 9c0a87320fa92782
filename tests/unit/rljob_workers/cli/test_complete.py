"""Shell completion: the protocol as bash speaks it, and what is offered."""

import os
import pathlib
import subprocess
import sys

import pytest

from rljob_workers.cli import choices
from rljob_workers.local.rundir import layout


def offered(line: str, folder: pathlib.Path) -> list[str]:
    """What bash is offered for the last word of `line`."""
    words = line.split(" ")
    spoken = {"_RLJOB_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-m", "rljob_workers.cli"], env={**os.environ, **spoken}, cwd=folder, capture_output=True,
        text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("rljob tra", ["trajectories"]),
        ("rljob why s", ["small"]),
        ("rljob logs --role ro", ["rollout"]),
        ("rljob why --output ", ["text", "json"]),
    ],
)
def test_shell_is_offered_commands_jobs_roles_and_values(
    run: layout.RunDir, tmp_path: pathlib.Path, line: str, expected: list[str]
) -> None:
    assert offered(line, tmp_path) == expected


def test_reasons_are_those_that_begin_so() -> None:
    assert choices.reasons("no_") == ["no_answer"]
    assert "zero_spread" in choices.reasons("")


def test_without_runs_no_job_is_offered(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert choices.jobs("") == []
