"""Runs the fixed program of `cpu_program.py` in a process of its own, and returns the CPU time of its repetitions.

CPU time and no wall time: neighbours that are busy do not lengthen it. A process of its own: threads of this one would
take turns with it. It takes less than a tenth of a second, and reads nothing that came from outside.
"""

import math
import pathlib
import subprocess

from rljob_workers.verifier.sandbox.processes import cpu_program, spawn
from rljob_workers.verifier.sandbox.processes.spawn import CannotRunError

PROGRAM = pathlib.Path(cpu_program.__file__)
TIMEOUT_S = 60.0


def repetitions_s(program: pathlib.Path = PROGRAM, *, timeout_s: float = TIMEOUT_S) -> tuple[float, ...]:
    """Return the CPU seconds of each repetition [5]; waits for them. Raises CannotRunError."""
    try:
        ended = subprocess.run(
            [*spawn.INTERPRETER, str(program)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            env=spawn.ENVIRONMENT,
            cwd="/",
            check=True,
        )
        seconds = tuple(map(float, ended.stdout.split()))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise CannotRunError(f"the CPU benchmark program failed: {error}") from error
    if len(seconds) != cpu_program.NUM_REPETITIONS or not all(0 < one_s < math.inf for one_s in seconds):
        raise CannotRunError(f"the CPU benchmark program printed {seconds}, not 5 times above 0")
    return seconds
