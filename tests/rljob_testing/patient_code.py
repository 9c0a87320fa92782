"""Reward types that run programs like `code` and `areal-code`, confined: `fresh-...` in an interpreter of their own
each, and `patient-...` with a wall limit that no busy machine meets.

A limit of CPU is then what ends a program that only takes CPU, however little of it the machine gives. Imported by
grading workers.
"""

import dataclasses
import functools

from rljob_api import process_config
from rljob_workers.verifier.graders.code import code_grader
from rljob_workers.verifier.sandbox import programs
from rljob_workers.verifier.sandbox.confinement import profile
from rljob_workers.verifier.sandbox.processes import spawn, warm

WALL_S = 240.0


def _made(config: process_config.GraderConfig, *, type_: str, fresh: bool, patient: bool) -> code_grader.CodeGrader:
    confined = profile.of_this_machine()
    start = spawn.fresh if fresh else warm.Interpreter(config.packages).start

    def run(program: programs.Program, *, stdin: bytes, limits: programs.Limits) -> programs.Run:
        limits = dataclasses.replace(limits, wall_s=WALL_S if patient else limits.wall_s)
        return programs.run(program, stdin=stdin, limits=limits, confined=confined, start=start)

    return code_grader.CodeGrader(config.model_copy(update={"type": type_}), run=run)


patient_code = functools.partial(_made, type_="code", fresh=False, patient=True)
patient_areal_code = functools.partial(_made, type_="areal-code", fresh=False, patient=True)
fresh_code = functools.partial(_made, type_="code", fresh=True, patient=False)
fresh_areal_code = functools.partial(_made, type_="areal-code", fresh=True, patient=False)
patient_fresh_code = functools.partial(_made, type_="code", fresh=True, patient=True)
patient_fresh_areal_code = functools.partial(_made, type_="areal-code", fresh=True, patient=True)

TYPES = tuple(
    f"{name.replace('_', '-')}={__name__}:{name}"
    for name in (
        "patient_code",
        "patient_areal_code",
        "fresh_code",
        "fresh_areal_code",
        "patient_fresh_code",
        "patient_fresh_areal_code",
    )
)
