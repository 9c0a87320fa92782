"""Programs of the policy: served where isolation holds, refused with 79 and the layer's name where it does not."""

import dataclasses
import errno
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable

import pytest

from rljob_api import enums, process_config, types
from rljob_workers.verifier import service
from rljob_workers.verifier.sandbox.confinement import bpf, landlock, profile, syscalls

CODE = process_config.GraderConfig(name="passes", type="code")
MakeConfig = Callable[..., process_config.VerifierConfig]
# Takes a filter of its own and becomes the command behind it.
BEHIND = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Program(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))
instructions = bytes.fromhex(sys.argv[1])
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Program(len(instructions) // 8, instructions)), 0, 0) == 0
os.execv(sys.argv[2], sys.argv[2:])
"""


def without(call: int) -> str:
    """Return the filter of a kernel that lacks a system call."""
    return bpf.packed(
        (
            bpf.Instruction(bpf.LOAD, 0, 0, bpf.NUMBER_AT),
            bpf.Instruction(bpf.JUMP_EQUAL, 0, 1, call),
            bpf.Instruction(bpf.RETURN, 0, 0, bpf.ERRNO | errno.ENOSYS),
            bpf.Instruction(bpf.RETURN, 0, 0, bpf.ALLOW),
        )
    ).hex()


def like_gvisor(architecture: syscalls.Architecture) -> str:
    """Return the filter of a kernel without Landlock whose own filters have no flag and no listener."""
    seccomp = syscalls.number("seccomp", architecture)
    assert seccomp is not None
    return bpf.packed(
        (
            bpf.Instruction(bpf.LOAD, 0, 0, bpf.NUMBER_AT),
            bpf.Instruction(bpf.JUMP_EQUAL, 0, 1, landlock.CREATE_RULESET),
            bpf.Instruction(bpf.RETURN, 0, 0, bpf.ERRNO | errno.ENOSYS),
            bpf.Instruction(bpf.JUMP_EQUAL, 0, 5, seccomp),
            bpf.Instruction(bpf.LOAD, 0, 0, bpf.ARGUMENTS_AT),
            # SECCOMP_GET_NOTIF_SIZES, and SECCOMP_FILTER_FLAG_NEW_LISTENER.
            bpf.Instruction(bpf.JUMP_EQUAL, 2, 0, 3),
            bpf.Instruction(bpf.LOAD, 0, 0, bpf.ARGUMENTS_AT + bpf.ARGUMENT_BYTES),
            bpf.Instruction(bpf.JUMP_EQUAL, 0, 1, 8),
            bpf.Instruction(bpf.RETURN, 0, 0, bpf.ERRNO | errno.EINVAL),
            bpf.Instruction(bpf.RETURN, 0, 0, bpf.ALLOW),
        )
    ).hex()


def verifier_behind(filter_: str, config: process_config.VerifierConfig, folder: pathlib.Path) -> tuple[int, str]:
    """Return the exit code and the log of a verifier that cannot start."""
    path = folder / "role.json"
    path.write_text(config.model_dump_json(), encoding="utf-8")
    done = behind(filter_, "-m", "rljob_workers.verifier", "--config", str(path))
    return done.returncode, done.stdout


def behind(filter_: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the interpreter behind a filter."""
    environment = {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    return subprocess.run(
        [sys.executable, "-c", BEHIND, filter_, sys.executable, *arguments],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.mark.covers("graders 6.6", "sandbox S-2", "security")
def test_verifier_with_programs_ends_with_79_where_the_kernel_has_no_landlock(
    make_config: MakeConfig, tmp_path: pathlib.Path
) -> None:
    code, log = verifier_behind(without(landlock.CREATE_RULESET), make_config(CODE), tmp_path)
    assert code == enums.ExitCode.ISOLATION_REFUSED
    assert "layer landlock is missing" in log


@pytest.mark.covers("sandbox S-2", "security")
def test_verifier_with_programs_ends_with_79_where_filters_cannot_ask(
    make_config: MakeConfig, confined: profile.Confinement, tmp_path: pathlib.Path
) -> None:
    seccomp = syscalls.number("seccomp", confined.architecture)
    assert seccomp is not None
    code, log = verifier_behind(without(seccomp), make_config(CODE), tmp_path)
    assert code == enums.ExitCode.ISOLATION_REFUSED
    assert "layer seccomp is missing: no user notification" in log


def item(program: str) -> types.VerifyItem:
    columns = {"query_id": "q", "input_output": json.dumps({"inputs": ["1 2"], "outputs": ["3"]})}
    return types.VerifyItem(
        sample_id=program, attempt=0, prompt="", completion=f"```python\n{program}\n```", columns=columns
    )


RIGHT = "print(sum(map(int, input().split())))"


@pytest.mark.covers("graders 6.6", "sandbox P2")
async def test_default_isolation_serves_programs_and_stops_what_they_may_not_do(
    make_config: MakeConfig, confined: profile.Confinement, tmp_path: pathlib.Path
) -> None:
    answers = tmp_path / "answers"
    answers.write_text("3")
    config = make_config(CODE, wall_limit_s=60.0, num_slots=1)
    assert config.execution.isolation.type == "Sandbox"
    verifier = service.Service(config)
    await verifier.start()
    try:
        right, reads, forks, calls = await verifier.grading.verify(
            [
                item(RIGHT),
                item(f"print(open({str(answers)!r}).read())"),
                item("import os\nif os.fork():\n    print(3)"),
                item(f"import ctypes\nctypes.CDLL(None).ptrace(0, 0, 0, 0)\n{RIGHT}"),
            ]
        )
    finally:
        await verifier.close()
    assert (right.reward, right.outcome) == (1.0, enums.VerifyOutcome.PASS)
    assert (reads.reward, reads.outcome) == (0.0, enums.VerifyOutcome.FAIL)
    assert (forks.reward, forks.outcome) == (0.0, enums.VerifyOutcome.FAIL)
    assert (calls.reward, calls.reason, calls.outcome) == (
        0.0, enums.VerdictReason.RESOURCE_LIMIT, enums.VerifyOutcome.FORBIDDEN,
    )  # fmt: skip


# Grades the items of the second argument with a service of the first's config; prints reward and outcome of each, and
# whether others may look into this process (PR_GET_DUMPABLE).
SERVES = """
import asyncio, ctypes, json, sys
from rljob_api import process_config, types
from rljob_workers.verifier import service

async def main():
    verifier = service.Service(process_config.VerifierConfig.model_validate_json(sys.argv[1]))
    await verifier.start()
    try:
        return await verifier.grading.verify([types.VerifyItem(**item) for item in json.loads(sys.argv[2])])
    finally:
        await verifier.close()

if __name__ == "__main__":
    graded = [[one.reward, one.outcome] for one in asyncio.run(main())]
    print(json.dumps([graded, ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)]))
"""


@pytest.mark.covers("sandbox S-2", "security")
def test_verifier_of_a_runtime_class_serves_programs_where_the_kernel_has_no_landlock_and_filters_cannot_ask(
    make_config: MakeConfig, confined: profile.Confinement, tmp_path: pathlib.Path
) -> None:
    gvisor = {"isolation": {"type": "RuntimeClass", "runtimeClassName": "gvisor"}}
    config = make_config(CODE, wall_limit_s=60.0, num_slots=1, execution=gvisor)
    writes = f"open({str(tmp_path / 'new')!r}, 'w')\n{RIGHT}"
    calls = f"import ctypes\nctypes.CDLL(None).ptrace(0, 0, 0, 0)\n{RIGHT}"
    connects = f"import socket\nsocket.socket()\n{RIGHT}"
    items = json.dumps([dataclasses.asdict(item(program)) for program in (RIGHT, writes, calls, connects)])
    done = behind(like_gvisor(confined.architecture), "-c", SERVES, config.model_dump_json(), items)
    assert done.returncode == 0, done.stdout + done.stderr
    graded, is_dumpable = json.loads(done.stdout.splitlines()[-1])
    assert graded == [[1.0, "pass"], [0.0, "fail"], [0.0, "forbidden"], [0.0, "fail"]]
    assert is_dumpable == 0
    assert list(tmp_path.iterdir()) == []
