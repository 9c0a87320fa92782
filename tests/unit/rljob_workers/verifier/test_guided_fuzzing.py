"""Guided fuzzing tries texts until its time is up, and ends at one that something cannot bear."""

import os
import pathlib
import subprocess
import sys

from rljob_testing import examples

TESTS = examples.ROOT / "tests"
BREAKS = """
from rljob_testing import guided_fuzzing, text_functions
text_functions.ALL = {"breaks": lambda text: 1 / ("boxed" not in text)}
guided_fuzzing.main(["--seconds", "60", "--text-seconds", "150"])
"""


def fuzz(folder: pathlib.Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_time_goes_by_without_a_text_that_breaks_anything(tmp_path: pathlib.Path) -> None:
    done = fuzz(tmp_path, "-m", "rljob_testing.guided_fuzzing", "--seconds", "1")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Done " in done.stderr
    assert list((tmp_path / "build/fuzzing").glob("*")) == [tmp_path / "build/fuzzing/words.dict"]


def test_text_that_breaks_a_function_is_found_and_kept(tmp_path: pathlib.Path) -> None:
    done = fuzz(tmp_path, "-c", BREAKS)
    assert done.returncode != 0
    assert "ZeroDivisionError" in done.stderr + done.stdout
    # As a crash, since showing what was raised takes no 150 s on any machine.
    (kept,) = set((tmp_path / "build/fuzzing").iterdir()) - {tmp_path / "build/fuzzing/words.dict"}
    assert kept.name.startswith("crash-")
    assert b"boxed" in kept.read_bytes()
