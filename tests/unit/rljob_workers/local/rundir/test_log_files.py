"""Logs of a run directory, also while they are written."""

import json
import pathlib
from collections.abc import Iterator

import pytest

from rljob_workers.local.rundir import journal, layout, log_lines


@pytest.fixture
def run(tmp_path: pathlib.Path) -> layout.RunDir:
    directory = layout.RunDir(tmp_path / "run")
    directory.logs.mkdir(parents=True)
    return directory


def write(run: layout.RunDir, name: str, text: str) -> None:
    with (run.logs / f"{name}.jsonl").open("a", encoding="utf-8") as file:
        file.write(text)


def ours(minute: int, msg: str) -> str:
    return json.dumps({"ts": f"1970-01-01T00:{minute:02d}:00.000+00:00", "level": "info", "msg": msg}) + "\n"


def journaled(run: layout.RunDir, *entries: journal.Entry) -> None:
    log = journal.Journal(run.journal)
    for entry in entries:
        log.write(entry)
    log.close()


@pytest.fixture
def logs(run: layout.RunDir) -> Iterator[log_lines.Logs]:
    found = log_lines.Logs(run)
    yield found
    found.close()


def told(logs: log_lines.Logs, *, partial: bool = True) -> list[str]:
    return [f"{line.source}: {line.msg}" for line in logs.read(partial=partial)]


def test_runner_tells_of_starts_and_endings_between_the_lines_of_the_processes(
    run: layout.RunDir, logs: log_lines.Logs
) -> None:
    write(run, "trainer", ours(1, "loading") + ours(3, "out of memory"))
    journaled(
        run,
        journal.Entry(event="segment", at=0.0),
        journal.Entry(event="started", at=30.0, name="trainer", role="trainer", attempt=2),
        journal.Entry(event="beat", at=90.0),
        journal.Entry(event="ended", at=200.0, name="trainer", role="trainer", code=1, detail="restart in 5 s"),
        journal.Entry(event="segment_end", at=300.0, detail="failed"),
    )
    assert told(logs) == [
        "runner: the run started or resumed",
        "runner: started trainer, attempt 2",
        "trainer: loading",
        "trainer: out of memory",
        "runner: trainer ended with code 1: restart in 5 s",
        "runner: the run ended: failed",
    ]


def test_only_an_ending_with_another_code_than_zero_is_a_warning() -> None:
    levels = []
    for code in (0, 1, -9):
        entry = journal.Entry(event="ended", at=1.0, name="trainer", code=code)
        line = log_lines.runner_line(entry.model_dump_json(), 0.0)
        assert line is not None
        levels.append(line.fields["level"])
    assert levels == ["info", "warning", "warning"]


def test_lines_without_a_time_begin_when_their_process_was_started(run: layout.RunDir, logs: log_lines.Logs) -> None:
    journaled(run, journal.Entry(event="started", at=120.0, name="trainer", role="trainer", attempt=1))
    write(run, "trainer", "ImportError: torch\n")
    write(run, "rollout", ours(1, "early") + ours(3, "late"))
    assert told(logs) == [
        "rollout: early", "runner: started trainer, attempt 1", "trainer: ImportError: torch", "rollout: late",
    ]  # fmt: skip


def test_reading_again_goes_on_where_it_ended_and_waits_for_half_a_line(
    run: layout.RunDir, logs: log_lines.Logs
) -> None:
    line = ours(1, "whole")
    write(run, "rollout", line + line[:20])
    assert told(logs, partial=False) == ["rollout: whole"]
    assert told(logs, partial=False) == []
    write(run, "rollout", line[20:])
    write(run, "trainer", ours(2, "a process that came later"))
    assert told(logs, partial=False) == ["rollout: whole", "trainer: a process that came later"]


def test_half_a_line_is_told_where_nobody_will_finish_it(run: layout.RunDir, logs: log_lines.Logs) -> None:
    write(run, "rollout", "Killed")
    assert told(logs, partial=True) == ["rollout: Killed"]


def test_line_beyond_the_bound_is_cut(run: layout.RunDir, logs: log_lines.Logs) -> None:
    write(run, "rollout", "x" * (log_lines.MAX_LINE_BYTES + 5) + "\n" + ours(1, "next"))
    first, second = logs.read(partial=True)
    assert (len(first.msg), second.msg) == (log_lines.MAX_LINE_BYTES, "next")
