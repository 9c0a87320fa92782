import json
import pathlib
import re
import socket
import threading

import pytest

from rljob_api import errors
from rljob_testing.clock import FakeClock
from rljob_workers.verifier import preflight
from rljob_workers.verifier.preflight import Layer
from rljob_workers.verifier.sandbox import probe
from rljob_workers.verifier.sandbox.confinement import landlock, notifications, profile

RESTRICTED = "Seccomp:\t2\nNoNewPrivs:\t1\nCapEff:\t0000000000000000\n"


def _proc(tmp_path: pathlib.Path, *, status: str = RESTRICTED, uid_map: str = "0 0 4294967295") -> pathlib.Path:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "status").write_text(f"Name:\tpython\n{status}")
    (tmp_path / "self" / "uid_map").write_text(f"         {uid_map}\n")
    (tmp_path / "version").write_text("Linux version 6.1.0 (gcc)\n")
    return tmp_path


def _holding(found: list[Layer]) -> set[str]:
    return {layer.name for layer in found if layer.holds}


def test_a_restricted_pod_has_filter_and_no_privileges_and_shares_the_hosts_users(tmp_path: pathlib.Path) -> None:
    assert _holding(preflight.process_layers(_proc(tmp_path))) == {"seccomp", "no_new_privileges", "capabilities"}


def test_a_user_namespace_is_believed_only_when_the_map_shows_it(tmp_path: pathlib.Path) -> None:
    found = preflight.process_layers(_proc(tmp_path, uid_map="0 1234567168 65536"))
    assert "user_namespace" in _holding(found)


@pytest.mark.parametrize(
    ("status", "lost"),
    [
        ("Seccomp:\t0\nNoNewPrivs:\t1\nCapEff:\t0000000000000000\n", "seccomp"),
        ("Seccomp:\t2\nNoNewPrivs:\t0\nCapEff:\t0000000000000000\n", "no_new_privileges"),
        ("Seccomp:\t2\nNoNewPrivs:\t1\nCapEff:\t00000000a80425fb\n", "capabilities"),
        ("NoNewPrivs:\t1\n", "seccomp"),
        ("Seccomp:\t2\n", "capabilities"),
    ],
)
def test_a_layer_that_the_kernel_does_not_report_does_not_hold(tmp_path: pathlib.Path, status: str, lost: str) -> None:
    assert lost not in _holding(preflight.process_layers(_proc(tmp_path, status=status)))


@pytest.mark.parametrize(
    ("version", "log", "holds", "detail"),
    [
        ("Linux version 4.19.0-gvisor #1 SMP", "", True, "gVisor"),
        ("Linux version 4.4.0 #1 SMP", "<6>[    0.000000] Starting gVisor...\n", True, "gVisor"),
        ("Linux version 6.1.0 (gcc)", "", False, "Linux version 6.1.0"),
        ("", "", False, ""),
    ],
)
def test_gvisor_is_told_by_its_kernel_and_no_other_runtime_is(
    version: str, log: str, holds: bool, detail: str, tmp_path: pathlib.Path
) -> None:
    proc = _proc(tmp_path)
    (proc / "version").write_text(version)
    assert Layer("runtime_class", holds, detail) in preflight.process_layers(proc, log=lambda: log)


@pytest.mark.parametrize(("answer", "holds"), [(1, True), (0, False), (-1, False)])
def test_kernel_whose_list_does_not_tell_of_privileges_is_asked(
    answer: int, holds: bool, tmp_path: pathlib.Path
) -> None:
    proc = _proc(tmp_path, status="Seccomp:\t0\nCapEff:\t0000000000000000\n")
    found = preflight.process_layers(proc, no_new_privs=lambda: answer, log=str)
    assert Layer("no_new_privileges", holds, str(answer)) in found


def test_this_kernel_answers_as_its_list_says() -> None:
    lines = pathlib.Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    assert f"NoNewPrivs:\t{preflight.asked_no_new_privs()}" in lines
    assert re.match(r"\Z|<\d+>", preflight.kernel_log())


def test_a_token_is_found(tmp_path: pathlib.Path) -> None:
    assert preflight.no_token(tmp_path / "token").holds
    (tmp_path / "token").write_text("secret")
    assert not preflight.no_token(tmp_path / "token").holds


def test_every_place_that_a_pod_must_not_reach_is_tried_and_named() -> None:
    tried: list[tuple[str, int]] = []

    def connect(address: tuple[str, int]) -> bool:
        tried.append(address)
        return address[0] in ("10.96.0.1", "198.51.100.1")

    environment = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
    found = preflight.network(
        environment, outside="198.51.100.1:443", connect=connect, resolvers=["10.96.0.10"], ask=lambda server: True
    )
    assert tried == [("169.254.169.254", 80), ("10.96.0.1", 6443), ("198.51.100.1", 443)]
    assert (found.holds, found.detail) == (False, "reached api_server, outside, dns")
    closed = preflight.network(
        environment, outside="", connect=lambda _: False, resolvers=["10.96.0.10"], ask=lambda _: False
    )
    assert closed.holds


def test_an_open_port_and_a_refused_one_were_both_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = ("127.0.0.1", int(server.getsockname()[1]))
        assert preflight.connects(address)
    assert preflight.connects(address)


def test_a_name_server_that_answers_is_reached() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        port = int(server.getsockname()[1])

        def answer() -> None:
            question, peer = server.recvfrom(512)
            server.sendto(question, peer)

        thread = threading.Thread(target=answer)
        thread.start()
        assert preflight.answers_dns("127.0.0.1", port)
        thread.join()
    assert not preflight.answers_dns("127.0.0.1", port)


def test_network_policies_may_land_late() -> None:
    clock = FakeClock()
    answers = [Layer("network", False, "reached dns"), Layer("network", False, ""), Layer("network", True, "")]
    found = preflight.settled(lambda: answers.pop(0), wait_s=15, monotonic=clock.monotonic, sleep=clock.tick)
    assert found.holds
    assert answers == []
    open_for_ever = Layer("network", False, "reached dns")
    assert preflight.settled(lambda: open_for_ever, wait_s=15, monotonic=clock.monotonic, sleep=clock.tick) is (
        open_for_ever
    )
    assert clock.monotonic() == pytest.approx(2 + 15)


def test_a_required_layer_that_does_not_hold_or_is_unknown_is_missing() -> None:
    found = [Layer("landlock", False, "ENOSYS"), Layer("seccomp", True, "mode 2")]
    assert preflight.missing(found, ("seccomp",)) == []
    assert preflight.missing(found, ("landlock", "seccomp", "enclave")) == ["landlock", "enclave"]
    said = json.loads(preflight.report(found, ("landlock",)))
    assert said["missing"] == ["landlock"]
    assert said["layers"]["landlock"] == {"holds": False, "detail": "ENOSYS", "required": True}


def test_the_report_fits_into_a_termination_message() -> None:
    found = [Layer(f"layer_{number}", True, "x" * 500) for number in range(16)]
    assert len(preflight.report(found, ())) < 4096


def test_the_program_ends_with_79_when_a_required_layer_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    found = [Layer("seccomp", True, "mode 2"), Layer("landlock", False, "ENOSYS")]
    assert preflight.main(["--require", "seccomp,landlock"], probed=lambda _: found) == 79
    assert json.loads(capsys.readouterr().out)["missing"] == ["landlock"]
    assert preflight.main(["--require", "seccomp"], probed=lambda _: found) == 0


def test_the_program_tests_every_layer_of_the_machine_that_it_runs_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert preflight.main([]) == 0, "nothing is required"
    layers = json.loads(capsys.readouterr().out)["layers"]
    assert {"landlock", "seccomp", "no_new_privileges", "capabilities", "confined", "network"} <= set(layers)


@pytest.mark.covers("sandbox S-1")
def test_layer_confined_holds_where_its_test_found_no_hole(confined: profile.Confinement) -> None:
    assert preflight.landlock() == Layer("landlock", True, f"ABI {confined.abi}")
    found = preflight.confined()
    assert (found.name, found.holds) == ("confined", True)
    assert found.detail == f"Landlock ABI {confined.abi}, filter for {confined.architecture.name}"


@pytest.mark.covers("sandbox S-2")
def test_under_a_runtime_class_layer_confined_holds_without_landlock_and_says_so(
    confined: profile.Confinement, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_: object) -> tuple[int, int]:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(landlock, "version", absent)
    found = preflight.confined(runtime_class="gvisor")
    assert found == Layer("confined", True, f"no Landlock, filter for {confined.architecture.name}")
    monkeypatch.setattr(notifications, "sizes", absent)
    found = preflight.confined(runtime_class="gvisor")
    assert found == Layer("confined", True, f"no Landlock, filter for {confined.architecture.name} that cannot ask")
    assert not preflight.confined().holds


@pytest.mark.covers("sandbox S-2")
def test_layer_confined_does_not_hold_where_something_is_missing_or_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(landlock, "version", absent)
    assert preflight.landlock() == Layer("landlock", False, "Function not implemented")
    assert preflight.confined() == Layer(
        "confined", False, "isolation confined: layer landlock is missing: Function not implemented"
    )

    def leaks(**_: object) -> profile.Confinement:
        raise errors.SandboxError("isolation confined does not hold: seccomp: A-48 a TCP socket succeeded")

    monkeypatch.setattr(probe, "verified", leaks)
    assert not preflight.confined().holds


@pytest.mark.covers("sandbox S-1")
def test_layer_confined_does_not_hold_where_an_excess_is_not_stopped(
    confined: profile.Confinement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "unlimited", lambda _: ("A-32 output",))
    assert preflight.confined() == Layer("confined", False, "not limited: A-32 output")
