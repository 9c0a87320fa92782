"""The test that a machine's confinement must pass before programs are run: it finds holes, and none where it holds."""

import dataclasses
import pathlib

import pytest

from rljob_api import errors
from rljob_workers.verifier.sandbox import probe, programs
from rljob_workers.verifier.sandbox.confinement import profile
from rljob_workers.verifier.sandbox.processes import spawn


@pytest.mark.covers("sandbox S-1")
def test_nothing_succeeds_where_confinement_holds(confined: profile.Confinement, start: spawn.Start) -> None:
    assert probe.holes(confined, start=start) == ()
    assert probe.verified() == confined


@pytest.mark.covers("sandbox S-2")
def test_filter_alone_stops_what_is_tried_and_every_excess(confined: profile.Confinement, start: spawn.Start) -> None:
    alone = dataclasses.replace(confined, abi=0, request_bytes=0, answer_bytes=0)
    assert probe.holes(alone, start=start) == ()
    assert probe.unlimited(alone) == ()


@pytest.mark.covers("sandbox S-1")
def test_every_attempt_is_one_that_an_unconfined_program_succeeds_with() -> None:
    # Raising one's own limits takes the capability, which only root has.
    wanted = {
        f"{layer}: {name}" for layer, tries in probe.ATTEMPTS.items() for name in tries if layer != "capabilities"
    }
    assert wanted <= set(probe.holes(None))


def test_hole_is_named_with_its_layer(confined: profile.Confinement, monkeypatch: pytest.MonkeyPatch) -> None:
    leaky = dataclasses.replace(confined, readable={**confined.readable, "/etc": 4})
    assert probe.holes(leaky) == ("landlock: A-22 read a file",)
    monkeypatch.setattr(profile, "of_this_machine", lambda **_: leaky)
    with pytest.raises(errors.SandboxError, match="does not hold: landlock: A-22 read a file succeeded"):
        probe.verified()


def test_confinement_that_cannot_be_applied_is_an_error(confined: profile.Confinement, tmp_path: pathlib.Path) -> None:
    broken = dataclasses.replace(confined, readable={str(tmp_path / "none"): 4})
    with pytest.raises(errors.SandboxError, match="isolation confined cannot be applied: .*No such file"):
        probe.holes(broken)


def test_test_that_ends_without_a_result_has_not_passed(
    confined: profile.Confinement, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object, **__: object) -> programs.Run:
        return programs.Run(output=b"", exit_code=0)

    monkeypatch.setattr(programs, "run", silent)
    with pytest.raises(errors.SandboxError, match="its test ended without a result"):
        probe.holes(confined)


@pytest.mark.covers("sandbox P5", "sandbox S-1")
def test_every_excess_is_stopped_by_its_limit(confined: profile.Confinement) -> None:
    assert probe.unlimited(confined) == ()


@pytest.mark.covers("sandbox S-1")
def test_excess_that_is_stopped_after_it_had_too_many_processes_is_named(
    confined: profile.Confinement, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = programs.Run(output=b"." * programs.MAX_PROCESSES, exit_code=-9, stopped="memory")
    in_time = dataclasses.replace(late, output=late.output[1:])
    for ended, named in ((late, True), (in_time, False)):
        monkeypatch.setattr(programs, "run", lambda *_, _ended=ended, **__: _ended)
        assert ("A-28 processes" in probe.unlimited(confined)) is named


def test_excess_that_nothing_stops_is_named(confined: profile.Confinement, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "run", lambda *_, **__: programs.Run(output=b"", exit_code=0))
    assert probe.unlimited(confined) == tuple(probe.EXCESSES)
