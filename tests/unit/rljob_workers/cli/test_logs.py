"""What `rljob logs` shows of a run directory."""

import json
import os
import pathlib
from collections.abc import Callable

import pytest
from typer.testing import Result

from rljob_workers.cli import logs
from rljob_workers.local.rundir import layout

Rljob = Callable[..., Result]


def write(run: layout.RunDir, name: str, *lines: tuple[int, str]) -> None:
    with (run.logs / f"{name}.jsonl").open("a", encoding="utf-8") as file:
        for second, msg in lines:
            ts = f"1970-01-01T00:00:{second:02d}.000+00:00"
            file.write(json.dumps({"ts": ts, "level": "info", "msg": msg}) + "\n")


@pytest.fixture
def logged(run: layout.RunDir) -> layout.RunDir:
    """The run took from second 0 to 30; step 1 was finished at 19."""
    write(run, "trainer", (5, "loading"), (18, "stepped"), (25, "saving"))
    write(run, "rollout", (6, "leased"))
    return run


def messages(result: Result) -> list[str]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line)["msg"] for line in result.stdout.splitlines()]


@pytest.mark.usefixtures("logged")
def test_all_roles_and_the_runner_are_merged_by_time(rljob: Rljob) -> None:
    result = rljob("logs", "small")
    assert [line.split()[1:3] for line in result.stdout.splitlines()] == [
        ["00:00:00.000", "runner"],
        ["00:00:05.000", "trainer"],
        ["00:00:06.000", "rollout"],
        ["00:00:18.000", "trainer"],
        ["00:00:25.000", "trainer"],
        ["00:00:30.000", "runner"],
    ]


@pytest.mark.usefixtures("logged")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--role", "trainer"), ["loading", "stepped", "saving"]),
        (("--tail", "2"), ["saving", "the run ended: finished"]),
        (("--role", "trainer", "--step", "1"), ["loading", "stepped"]),
        (("--since", "1970-01-01T00:00:20Z"), ["saving", "the run ended: finished"]),
        (("--level", "warning"), []),
        (("--group", "g1"), []),
        (("--follow", "--role", "rollout"), ["leased"]),
    ],
)
def test_options_choose_lines(rljob: Rljob, words: tuple[str, ...], expected: list[str]) -> None:
    assert messages(rljob("logs", *words, "-o", "json")) == expected


@pytest.mark.usefixtures("logged")
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--role", "cook"), "--role is 'cook'"),
        (("--step", "x"), "--step is 'x'"),
        (("--since", "x"), "--since is 'x'"),
        (("--level", "loud"), "'loud' is not one of"),
    ],
)
def test_bad_options_are_named_with_exit_code_two(rljob: Rljob, words: tuple[str, ...], problem: str) -> None:
    result = rljob("logs", *words)
    assert result.exit_code == 2
    assert problem in result.stderr


def test_following_shows_what_is_written_until_the_run_ends(
    logged: layout.RunDir, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # This process stands for the run's.
    logged.pids.write_text(json.dumps({"trainer": {"pid": os.getpid(), "guard": os.getpid()}}))
    waits = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        write(logged, "trainer", (40, f"after {len(waits)} waits"))
        if len(waits) == 2:
            logged.pids.unlink()
            with (logged.logs / "trainer.jsonl").open("a") as file:
                file.write("Killed")

    options = logs.Options(roles=("trainer",), follow=True, tail=1, as_json=True)
    assert logs.logs("", run_dir=logged.path, options=options, wait=wait) == 0
    shown = [json.loads(line)["msg"] for line in capsys.readouterr().out.splitlines()]
    assert shown == ["saving", "after 1 waits", "after 2 waits", "Killed"]
