"""What two real nodes need of a machine, and what follows for tests that want them. Pure but for `this_machine`."""

import dataclasses
import enum
import os
import pathlib
import shutil
import sys
from collections.abc import Sequence

from rljob_testing.cluster import binaries

SWITCH = "RLJOB_NODES"
# 1: jobs that run and jobs that cannot; all: also one that is broken for a quarter of an hour, and one that learns.
SOME, ALL = ("1", "all"), ("all",)
# A whole job: vLLM, DeepSpeed and the control plane.
MEMORY_BYTES = 12 << 30
# Images while they are built: the builder's store, the archive on its way, what is unpacked. Then checkpoints alone.
BUILD_BYTES, RUN_BYTES = 24 << 30, 8 << 30
TOOLS = (*binaries.LIGHT, *binaries.NODES, "helm")
PACKAGES = ("containerd", "ctr", "runc", "nft", "ip", "nsenter", "buildah", "debootstrap", "gcc")
_CGROUPS = pathlib.Path("/sys/fs/cgroup")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What was found. `missing` names programs, each with how to get it; sizes are in bytes and free ones."""

    linux: bool
    root: bool
    cgroups_v1: bool
    go: bool
    apt: bool
    images_ready: bool
    memory_bytes: int
    disk_bytes: int
    missing: tuple[str, ...]


class Verdict(enum.Enum):
    """RUN: start the nodes. SKIP: this machine cannot, or no one asked. FAIL: it could, and something was left out."""

    RUN = "run"
    SKIP = "skip"
    FAIL = "fail"


def unfit(machine: Machine) -> list[str]:
    """Return why no node can be set up here, however much room there is; a sentence each, none if one can."""
    if not (machine.linux and machine.root):
        return ["nodes need Linux and root"]
    if not machine.cgroups_v1:
        return ["the nodes' set-up is for cgroups version 1, which this machine does not have"]
    return []


def unmet(machine: Machine) -> list[str]:
    """Return why this machine cannot run a whole job on nodes; a sentence each, none if it can."""
    reasons = unfit(machine)
    if machine.memory_bytes < MEMORY_BYTES:
        reasons.append(
            f"a whole job needs {_gigabytes(MEMORY_BYTES)} of memory, {_gigabytes(machine.memory_bytes)} are free"
        )
    needed = RUN_BYTES if machine.images_ready else BUILD_BYTES
    if machine.disk_bytes < needed:
        what = "a whole job" if machine.images_ready else "building the images"
        reasons.append(f"{what} needs {_gigabytes(needed)} of disk, {_gigabytes(machine.disk_bytes)} are free")
    if machine.missing and not (machine.go and machine.apt):
        lacking = " and ".join(name for name, there in (("Go", machine.go), ("apt", machine.apt)) if not there)
        reasons.append(f"{'; '.join(machine.missing)}; and {lacking} is not here to get it")
    return reasons


def verdict(machine: Machine, *, asked: bool, ci: bool) -> tuple[Verdict, str]:
    """Return what tests on two nodes do here, and why if they do not run.

    What a machine cannot change is a reason to skip, by name. A program that it could have installed is one to skip on
    a person's machine, and a failure in CI, where it must have been.
    """
    if not asked:
        return Verdict.SKIP, f"two real nodes were not asked for ({SWITCH}=1)"
    if reasons := unmet(machine):
        return Verdict.SKIP, "; ".join(reasons)
    if machine.missing:
        return Verdict.FAIL if ci else Verdict.SKIP, "; ".join(machine.missing)
    return Verdict.RUN, ""


def this_machine(*, images_ready: bool) -> Machine:
    """Return what this machine has now."""
    linux = sys.platform.startswith("linux")
    return Machine(
        linux=linux,
        root=linux and os.geteuid() == 0,
        cgroups_v1=(_CGROUPS / "memory").is_dir(),
        go=shutil.which("go") is not None,
        apt=shutil.which("apt-get") is not None,
        images_ready=images_ready,
        memory_bytes=_available_bytes() if linux else 0,
        disk_bytes=shutil.disk_usage(_existing(binaries.cache_dir())).free,
        missing=missing_programs((*TOOLS, *PACKAGES)),
    )


def missing_programs(names: Sequence[str]) -> tuple[str, ...]:
    """Return, for each program that is not there, its name and how to get it."""
    found = []
    for name in names:
        try:
            binaries.find(name)
        except binaries.MissingProgramError as error:
            found.append(str(error))
    return tuple(found)


def _available_bytes() -> int:
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("MemAvailable:")]
    return int(line.split()[1]) << 10


def _existing(path: pathlib.Path) -> pathlib.Path:
    return next(one for one in (path, *path.parents) if one.exists())


def _gigabytes(size: int) -> str:
    return f"{size / (1 << 30):.0f} GB"
