"""Executions a second of one small program, one after the other: by our runner, by bare Python, by bubblewrap.

Every run is an answer between stdin and stdout that is checked, so both sides do all of the work. What rows ST-3 to
ST-5 have in common.
"""

import contextlib
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence

from tests.bench import runner

from rljob_workers.verifier.sandbox import programs
from rljob_workers.verifier.sandbox.confinement import profile
from rljob_workers.verifier.sandbox.processes import candidate, spawn, warm

SOURCE = "a, b = map(int, input().split())\nprint(a + b)\n"
Run = Callable[[bytes], bytes]
_LIMITS = programs.Limits(cpu_s=6.0, wall_s=60.0, memory_bytes=512 << 20, output_bytes=64 << 10)


def pairs(*, ours: Run, peer: Run, size: str) -> list[runner.Pair]:
    """Return executions a second: 3 pairs of 20 runs, or 9 pairs of 200."""
    num_pairs, count = (9, 200) if size == "full" else (3, 20)
    for run in (ours, peer):
        _rate(run, count=3)
    found = []
    for seed in range(num_pairs):
        first = random.Random(seed).choice(("ours", "peer"))
        rates = {}
        for side in (first, "peer" if first == "ours" else "ours"):
            rates[side] = _rate(ours if side == "ours" else peer, count=count)
        found.append(runner.Pair(rates["ours"], rates["peer"], first))
    return found


def _rate(run: Run, *, count: int) -> float:
    started_s = time.perf_counter()
    for number in range(count):
        printed = run(f"{number} 1".encode())
        if printed != f"{number + 1}\n".encode():
            raise RuntimeError(f"a run printed {printed!r}")
    return count / (time.perf_counter() - started_s)


def forked(interpreter: warm.Interpreter) -> Run:
    """Return our runner on a warm interpreter, confined."""
    return _ours(interpreter.start)


def fresh() -> Run:
    """Return our runner on an interpreter of its own for each run, confined."""
    return _ours(spawn.fresh)


def _ours(start: spawn.Start) -> Run:
    confined = profile.of_this_machine()
    program = programs.Program(source=SOURCE, compat=False)

    def run(stdin: bytes) -> bytes:
        return programs.run(program, stdin=stdin, limits=_LIMITS, confined=confined, start=start).output

    return run


def bare(*, preamble: bool = False) -> Run:
    """Return plain `python -I -S`; with the imports that our runner gives every program, or without."""
    return _plain([*spawn.INTERPRETER, "-c", (candidate.PREAMBLE if preamble else "") + SOURCE])


def bubblewrap() -> Run | None:
    """Return `python -I -S` behind new namespaces, None where that is not installed or not allowed."""
    program = shutil.which("bwrap")
    if program is None:
        return None
    shown = [word for path in _shown() for word in ("--ro-bind", path, path)]
    command = [program, "--unshare-all", "--die-with-parent", *shown, *spawn.INTERPRETER, "-c", SOURCE]
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        _plain(command)(b"1 1")
        return _plain(command)
    return None


def _shown() -> Sequence[str]:
    folders = ("/usr", "/lib", "/lib64", os.path.dirname(os.path.dirname(spawn.INTERPRETER[0])))
    return [folder for folder in folders if os.path.isdir(folder)]


def _plain(command: Sequence[str]) -> Run:
    def run(stdin: bytes) -> bytes:
        return subprocess.run(
            command, input=stdin, stdout=subprocess.PIPE, check=True, env=spawn.ENVIRONMENT, cwd="/"
        ).stdout

    return run
