"""Rules to the instructions of a seccomp filter: classic BPF over `struct seccomp_data`. Pure.

A program reads: another architecture or another interface -> kill; newer than the table -> ENOSYS; rule after rule;
else allowed. Sources: include/uapi/linux/{bpf_common,filter,seccomp}.h. Little-endian machines.
"""

import errno
import struct
from collections.abc import Sequence
from typing import NamedTuple

from rljob_workers.verifier.sandbox.confinement import syscalls
from rljob_workers.verifier.sandbox.confinement.filter_rules import Action, Condition, Rule

# BPF_LD|BPF_W|BPF_ABS, BPF_ALU|BPF_AND|BPF_K, BPF_JMP with BPF_JEQ, BPF_JGT and BPF_JGE, BPF_RET|BPF_K.
LOAD, AND, JUMP_EQUAL, JUMP_GREATER, JUMP_GREATER_EQUAL, RETURN = 0x20, 0x54, 0x15, 0x25, 0x35, 0x06
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT, ARGUMENT_BYTES = 0, 4, 16, 8
KILL_PROCESS, ERRNO, USER_NOTIF, ALLOW = 0x80000000, 0x00050000, 0x7FC00000, 0x7FFF0000
# BPF_MAXINSNS of include/uapi/linux/bpf_common.h.
MAX_INSTRUCTIONS = 4096

_RESULTS = {
    Action.KILL: KILL_PROCESS,
    Action.REFUSE: ERRNO | errno.EPERM,
    Action.MISSING: ERRNO | errno.ENOSYS,
    Action.UNSUPPORTED: ERRNO | errno.EOPNOTSUPP,
    Action.ASK: USER_NOTIF,
}


class Instruction(NamedTuple):
    """`struct sock_filter`: code; how many instructions to skip if true and if false; a constant."""

    code: int
    if_true: int
    if_false: int
    constant: int


def assemble(rules: Sequence[Rule], architecture: syscalls.Architecture) -> tuple[Instruction, ...]:
    """Raises ValueError if the kernel would not take it."""
    program = [
        Instruction(LOAD, 0, 0, ARCHITECTURE_AT),
        Instruction(JUMP_EQUAL, 1, 0, architecture.audit),
        Instruction(RETURN, 0, 0, KILL_PROCESS),
        Instruction(LOAD, 0, 0, NUMBER_AT),
    ]
    if architecture.foreign_from:
        program += [
            Instruction(JUMP_GREATER_EQUAL, 0, 1, architecture.foreign_from),
            Instruction(RETURN, 0, 0, KILL_PROCESS),
        ]
    program += [
        Instruction(JUMP_GREATER, 0, 1, syscalls.NEWEST),
        Instruction(RETURN, 0, 0, ERRNO | errno.ENOSYS),
    ]
    for rule in rules:
        number = syscalls.number(rule.call, architecture)
        if number is not None:
            program += _rule(rule, number)
    program.append(Instruction(RETURN, 0, 0, ALLOW))
    if len(program) > MAX_INSTRUCTIONS:
        raise ValueError(f"a filter has at most {MAX_INSTRUCTIONS} instructions, not {len(program)}")
    return tuple(program)


def _rule(rule: Rule, number: int) -> list[Instruction]:
    """Return the instructions of a rule: with the call's number loaded before and, if it does not apply, after."""
    result = Instruction(RETURN, 0, 0, _RESULTS[rule.action])
    if not rule.conditions:
        return [Instruction(JUMP_EQUAL, 0, 1, number), result]
    body: list[Instruction] = [result, Instruction(LOAD, 0, 0, NUMBER_AT)]
    for condition in reversed(rule.conditions):
        # One that is not met goes to the last instruction, which loads the number again.
        body = [*_condition(condition, skip=len(body) - 1), *body]
    return [Instruction(JUMP_EQUAL, 0, len(body), number), *body]


def _condition(condition: Condition, *, skip: int) -> list[Instruction]:
    load = Instruction(LOAD, 0, 0, ARGUMENTS_AT + ARGUMENT_BYTES * condition.argument)
    mask = Instruction(AND, 0, 0, condition.mask)
    met, unmet = (0, skip) if condition.equal else (skip, 0)
    return [load, mask, Instruction(JUMP_EQUAL, met, unmet, condition.value)]


def packed(program: Sequence[Instruction]) -> bytes:
    """Return the program as an array of `struct sock_filter`."""
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
