"""`rljob-coordinator --check`: one line a problem, exit code 2, nothing started."""

import pathlib
import subprocess
import sys
from collections.abc import Callable

import pytest

from rljob_api import process_config
from rljob_workers.coordinator import __main__ as program

MakeConfig = Callable[..., process_config.CoordinatorConfig]


def test_sound_data_pass(make_config: MakeConfig, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.check(make_config(suites=True)) == 0
    assert capsys.readouterr() == ("", "")


def test_every_problem_is_a_line_with_file_and_line_number(
    make_config: MakeConfig, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "train.jsonl"
    data.write_text('{"prompt": "1+1=", "answer": "2", "id": "a"}\n{"prompt": "x"}\nno json\n', encoding="utf-8")
    (tmp_path / "held_out.jsonl").unlink()
    assert program.check(make_config(suites=True)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"error: {data}:2: the record has no answer column 'answer'; its columns: prompt"
    assert lines[1].startswith(f"error: {data}:3: the line is not JSON")
    assert lines[2] == f"error: {tmp_path / 'held_out.jsonl'}: the data file does not exist"
    assert len(lines) == 3


def test_records_that_a_source_drops_are_one_warning_with_their_number(
    make_config: MakeConfig, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ['{"prompt": "1+1=", "answer": "2", "id": "a"}', "no json", '{"prompt": "x"}', '{"prompt": "y"}']
    (tmp_path / "held_out.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert program.check(make_config(suites=True, suite_drops=True)) == 0
    (warning,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: "))
    assert warning.startswith("warning: source 'held_out': 3 of 4 records are left out: 2 x the record has no answer")


def test_nothing_heavy_is_imported_for_help() -> None:
    code = (
        "import sys; from rljob_workers.coordinator import __main__; "
        "print([m for m in ('torch', 'vllm', 'transformers', 'grpc', 'sqlite3', 'pyarrow') if m in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ended.stdout.strip() == "[]"
