import dataclasses

import pytest

from rljob_testing.cluster import preconditions
from rljob_testing.cluster.preconditions import Machine, Verdict

FIT = Machine(
    linux=True,
    root=True,
    cgroups_v1=True,
    go=True,
    apt=True,
    images_ready=False,
    memory_bytes=16 << 30,
    disk_bytes=60 << 30,
    missing=(),
)


@pytest.mark.parametrize("ci", [False, True])
def test_machine_that_has_everything_runs_what_was_asked_for(ci: bool) -> None:
    assert preconditions.verdict(FIT, asked=True, ci=ci) == (Verdict.RUN, "")


@pytest.mark.parametrize("ci", [False, True])
def test_nothing_runs_that_was_not_asked_for(ci: bool) -> None:
    verdict, reason = preconditions.verdict(FIT, asked=False, ci=ci)
    assert verdict is Verdict.SKIP
    assert "RLJOB_NODES=1" in reason


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        ({"linux": False}, "Linux"),
        ({"root": False}, "root"),
        ({"cgroups_v1": False}, "cgroups version 1"),
        ({"memory_bytes": 4 << 30}, "12 GB of memory, 4 GB are free"),
        ({"disk_bytes": 20 << 30}, "24 GB of disk, 20 GB are free"),
        ({"missing": ("runc is missing",), "apt": False}, "runc is missing; and apt is not here"),
        ({"missing": ("kubelet is missing",), "go": False}, "kubelet is missing; and Go is not here"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_machine_that_cannot_is_skipped_by_name_even_in_ci(lacking: dict[str, object], said: str) -> None:
    verdict, reason = preconditions.verdict(dataclasses.replace(FIT, **lacking), asked=True, ci=True)  # type: ignore[arg-type]
    assert verdict is Verdict.SKIP
    assert said in reason


def test_every_reason_is_named_at_once() -> None:
    machine = dataclasses.replace(FIT, memory_bytes=0, disk_bytes=0)
    _, reason = preconditions.verdict(machine, asked=True, ci=False)
    assert "of memory" in reason
    assert "of disk" in reason


@pytest.mark.parametrize(("ci", "expected"), [(True, Verdict.FAIL), (False, Verdict.SKIP)])
def test_program_that_could_have_been_built_fails_in_ci_alone(ci: bool, expected: Verdict) -> None:
    machine = dataclasses.replace(FIT, missing=("kubelet is missing: `make cluster-tools` builds it",))
    verdict, reason = preconditions.verdict(machine, asked=True, ci=ci)
    assert verdict is expected
    assert "make cluster-tools" in reason


def test_images_that_are_there_need_no_room_to_be_built() -> None:
    machine = dataclasses.replace(FIT, disk_bytes=10 << 30, images_ready=True)
    assert preconditions.unmet(machine) == []


def test_room_for_jobs_is_no_condition_of_a_node_alone() -> None:
    assert preconditions.unfit(dataclasses.replace(FIT, memory_bytes=0, disk_bytes=0)) == []
