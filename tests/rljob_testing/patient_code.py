"""Reward types that run programs like `code` and `areal-code`, confined, with a wall limit no busy machine meets.

A limit of CPU is then what ends a program that only takes CPU, however little of it the machine gives. Imported by
grading workers.
"""

import dataclasses

from rljob_api import roles
from rljob_workers.verifier.graders import code
from rljob_workers.verifier.sandbox import confinement, programs

WALL_S = 240.0
TYPES = (
    "patient-code=rljob_testing.patient_code:patient_code",
    "patient-areal-code=rljob_testing.patient_code:patient_areal_code",
)


def patient_code(config: roles.GraderConfig) -> code.CodeGrader:
    return _patient(config, "code")


def patient_areal_code(config: roles.GraderConfig) -> code.CodeGrader:
    return _patient(config, "areal-code")


def _patient(config: roles.GraderConfig, type_: str) -> code.CodeGrader:
    confined = confinement.of_this_machine()

    def run(program: programs.Program, *, stdin: bytes, limits: programs.Limits) -> programs.Run:
        return programs.run(program, stdin=stdin, limits=dataclasses.replace(limits, wall_s=WALL_S), confined=confined)

    return code.CodeGrader(config.model_copy(update={"type": type_}), run=run)
