"""Small pure parts: cores, GPUs, ports, spans, memory, deadlines, the journal."""

import errno
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import enums, errors, process_config
from rljob_workers.local import prepare, processes
from rljob_workers.local.run import deadlines, launch, resources
from rljob_workers.local.rundir import intervals, journal

ROLES = {enums.Role.COORDINATOR: 1, enums.Role.ROLLOUT: 2, enums.Role.VERIFIER: 1, enums.Role.TRAINER: 2}


def test_on_two_cores_trainer_and_rollout_share_both() -> None:
    plan = resources.plan_cores([0, 1], {enums.Role.ROLLOUT: 1, enums.Role.TRAINER: 1})
    assert plan[enums.Role.ROLLOUT][0].affinity == plan[enums.Role.TRAINER][0].affinity == (0, 1)


def test_with_many_cores_compute_processes_get_disjoint_slices_that_cover_all() -> None:
    plan = resources.plan_cores(range(10), ROLES)
    shares = [*plan[enums.Role.ROLLOUT], *plan[enums.Role.TRAINER]]
    assert [share.affinity for share in shares] == [(0, 1), (2, 3, 4), (5, 6), (7, 8, 9)]
    assert [share.num_threads for share in shares] == [2, 3, 2, 3]


@given(st.integers(min_value=1, max_value=128))
def test_every_process_gets_a_thread_and_only_existing_cores(count: int) -> None:
    plan = resources.plan_cores(range(count), ROLES)
    for role, shares in plan.items():
        assert len(shares) == ROLES[role]
        assert all(share.num_threads >= 1 and set(share.affinity) <= set(range(count)) for share in shares)


def test_a_machine_without_cores_is_refused() -> None:
    with pytest.raises(ValueError, match="core"):
        resources.plan_cores([], ROLES)


def role_configs(
    folder: pathlib.Path, *, device: str = "cuda", rollouts: int = 1, ranks: int = 1, tensor: int = 1, share: str = ""
) -> dict[str, process_config.ProcessConfig]:
    memory = f', gpuMemoryUtilization: "{share}"' if share else ""
    path = folder / "job.yaml"
    path.write_text(
        f"""
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {{name: small}}
spec:
  maxSteps: 1
  {f"device: {device}" if device else "seed: 0"}
  model: {{name: "builtin:smollm2-135m-instruct"}}
  data: {{template: "raw", train: [{{name: t, path: t.jsonl, maxPromptTokens: 32}}]}}
  algorithm: {{groupSize: 8, promptsPerStep: 8}}
  rollout:
    replicas: {rollouts}
    engine: {{maxModelLen: 64, maxNumSeqs: 4, tensorParallelSize: {tensor}{memory}}}
    sampling: {{maxTokens: 8}}
  verifier: {{rewards: [{{name: sum, type: exact}}]}}
  trainer: {{processesPerNode: {ranks}}}
"""
    )
    resolved = prepare.resolve_here(prepare.read_manifest(path), run_dir=folder / "run", uid="u")
    return launch.process_names(resolved.configs)


EIGHT = tuple("01234567")


def test_every_process_of_a_job_for_gpus_has_its_own(tmp_path: pathlib.Path) -> None:
    found = resources.plan_gpus(role_configs(tmp_path, rollouts=2, tensor=2, ranks=4), EIGHT, engine="cuda")
    assert found == {"rollout-0": ("0", "1"), "rollout-1": ("2", "3"), "trainer": ("4", "5", "6", "7")}


def test_one_gpu_is_shared_where_the_engine_leaves_the_trainer_a_part_of_its_memory(tmp_path: pathlib.Path) -> None:
    found = resources.plan_gpus(role_configs(tmp_path, share="0.4"), ("0",), engine="cuda")
    assert found == {"rollout": ("0",), "trainer": ("0",)}


@pytest.mark.parametrize(
    ("rollouts", "share", "said"),
    [
        (1, "", "spec.rollout.engine.gpuMemoryUtilization is unset, but engines and trainer share one GPU here"),
        (1, "1", "spec.rollout.engine.gpuMemoryUtilization 1: 1 engines and the trainer share one GPU"),
        (2, "0.5", "spec.rollout.engine.gpuMemoryUtilization 0.5: 2 engines and the trainer share one GPU"),
    ],
)
def test_one_gpu_is_not_shared_without_a_part_for_the_trainer(
    rollouts: int, share: str, said: str, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(errors.ManifestError, match=said):
        resources.plan_gpus(role_configs(tmp_path, rollouts=rollouts, share=share), ("0",), engine="cuda")


@pytest.mark.parametrize(
    ("gpus", "device", "said"),
    [
        ((), "cuda", r"computes on 5 GPUs \(rollout 1, trainer 4\), but none is visible here"),
        (("0",), "cuda", r"computes on 5 GPUs \(rollout 1, trainer 4\), but 1 is visible here"),
        (("0", "1"), "", r"computes on 5 GPUs \(rollout 1, trainer 4\), but 2 are visible here"),
    ],
)
def test_too_few_gpus_are_refused_with_who_needs_them(
    gpus: tuple[str, ...], device: str, said: str, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(errors.ManifestError, match=said):
        resources.plan_gpus(role_configs(tmp_path, device=device, ranks=4), gpus, engine="cuda")


def test_a_job_for_processors_gets_no_gpu_and_one_that_does_not_say_what_is_there(tmp_path: pathlib.Path) -> None:
    assert resources.plan_gpus(role_configs(tmp_path, device="cpu"), EIGHT, engine="cpu") == {}
    undecided = role_configs(tmp_path, device="")
    assert resources.plan_gpus(undecided, (), engine="cpu") == {}
    assert resources.plan_gpus(undecided, EIGHT, engine="cuda") == {"rollout": ("0",), "trainer": ("1",)}
    # The engine for CPUs needs none; the trainer's torch is built for CUDA all the same.
    assert resources.plan_gpus(undecided, EIGHT, engine="cpu") == {"trainer": ("0",)}


def test_free_ports_are_different_and_can_be_bound() -> None:
    found = resources.free_ports(8)
    assert len(set(found)) == 8
    for port in found:
        with socket.socket() as opened:
            opened.bind((resources.HOST, port))


def test_ports_are_none_that_the_system_may_give_to_a_connection_before_the_role_binds_them() -> None:
    with socket.socket() as any_port:
        any_port.bind((resources.HOST, 0))
        given_out_from = 32_768
        assert any_port.getsockname()[1] >= given_out_from, "this system gives out others: change `_PORTS` with it"
    assert max(resources.free_ports(1000)) < given_out_from


def test_more_ports_than_are_free_are_refused_with_how_many_there_are() -> None:
    with pytest.raises(OSError, match="30000 TCP ports are needed, and of .* are free") as raised:
        resources.free_ports(30_000)
    assert raised.value.errno == errno.EADDRINUSE


def test_union_joins_spans_that_touch_and_drops_empty_ones() -> None:
    assert intervals.union([(5, 6), (1, 2), (2, 3), (2.5, 4), (9, 9)]) == [(1, 4), (5, 6)]


def test_shared_time_of_two_sets_of_spans() -> None:
    assert intervals.shared_s([(0, 10)], [(2, 4), (3, 5), (9, 12)]) == 4


SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda span: (float(span[0]), float(span[1]))))


@given(SPANS, SPANS)
def test_shared_time_equals_counting_unit_cells(first: list[intervals.Span], second: list[intervals.Span]) -> None:
    def cells(spans: list[intervals.Span]) -> set[int]:
        return {cell for begin, end in spans for cell in range(int(begin), int(end))}

    assert intervals.shared_s(first, second) == len(cells(first) & cells(second))


def test_memory_of_a_tree_includes_children() -> None:
    # A child that holds 64 MB it has written to.
    child = subprocess.Popen(
        [sys.executable, "-c", "held = b'x' * (64 << 20); print('up', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline()
    parent_of = processes.parents()
    assert processes.tree_bytes(child.pid, parent_of) > 64 << 20
    assert processes.tree_bytes(os.getpid(), parent_of) > processes.process_bytes(os.getpid()) + (60 << 20)
    child.communicate(b"\n")


def test_pss_is_preferred_and_resident_size_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    rollup = dict(line.split()[:2] for line in pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    assert processes.process_bytes(os.getpid()) == pytest.approx(int(rollup["Pss:"]) << 10, rel=0.05)
    assert processes.resident_bytes(os.getpid()) == pytest.approx(int(rollup["Rss:"]) << 10, rel=0.05)

    def unreadable(process: psutil.Process) -> None:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "memory_full_info", unreadable)
    assert processes.process_bytes(os.getpid()) == pytest.approx(int(rollup["Rss:"]) << 10, rel=0.05)


def test_a_process_that_is_gone_holds_nothing_and_has_no_descendants() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert processes.process_bytes(child.pid) == processes.resident_bytes(child.pid) == 0
    assert not processes.is_running(child.pid)
    assert processes.descendants(child.pid) == []


def test_a_zombie_runs_nothing() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not processes.is_running(child.pid)
    assert child.pid not in processes.parents()
    child.wait()


def test_memory_is_measured_closely_only_when_it_may_have_peaked() -> None:
    memory = processes.PeakMemory()
    assert memory.may_be_peak({"trainer": 1000, "rollout": 1000})
    assert not memory.may_be_peak({"trainer": 1000, "rollout": 1000})
    assert not memory.may_be_peak({"trainer": 1019, "rollout": 900})
    assert memory.may_be_peak({"trainer": 1100, "rollout": 800})
    # No role beyond its own highest, but both high at one moment.
    assert memory.may_be_peak({"trainer": 1090, "rollout": 990})


def test_the_parent_of_every_process_is_known_whatever_its_program_is_called(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "a) Z 1 (b"
    program.symlink_to(shutil.which("cat") or "/bin/cat")
    with subprocess.Popen([program], stdin=subprocess.PIPE) as child:
        parent_of = processes.parents()
        assert parent_of[child.pid] == os.getpid()
        assert parent_of[os.getpid()] == os.getppid()
        assert child.stdin is not None
        child.stdin.close()


def test_peak_of_the_total_is_of_one_moment_and_not_the_sum_of_peaks() -> None:
    memory = processes.PeakMemory()
    memory.observe({"trainer": 10, "rollout": 1})
    memory.observe({"trainer": 2, "rollout": 5})
    assert memory.peaks == {"trainer": 10, "rollout": 5, "total": 11}


LIMITS = deadlines.Limits(startup_s=100.0, active_s=1000.0, stall_s=50.0, on_stall="Fail")


@pytest.mark.parametrize(
    ("segment_s", "idle_s", "stepped", "reason"),
    [
        (99.0, None, False, None),
        (100.0, None, False, "StartupDeadlineExceeded"),
        (500.0, 49.0, True, None),
        (500.0, 50.0, True, "StallTimeout"),
        (1000.0, 0.0, True, "ActiveDeadlineExceeded"),
    ],
)
def test_deadlines(segment_s: float, idle_s: float | None, stepped: bool, reason: str | None) -> None:
    found = deadlines.exceeded(deadlines.Elapsed(segment_s=segment_s, idle_s=idle_s, stepped=stepped), LIMITS)
    assert (None if found is None else found.reason) == reason


def entries(*lines: dict[str, object]) -> list[journal.Entry]:
    return [journal.Entry.model_validate(line) for line in lines]


def test_wall_time_sums_segments_and_ends_a_killed_one_at_its_last_line() -> None:
    found = entries(
        {"event": "segment", "at": 100.0},
        {"event": "beat", "at": 160.0},
        {"event": "segment", "at": 1000.0},
        {"event": "segment_end", "at": 1040.0},
    )
    assert journal.wall_s(found) == 100.0


def test_newest_trainer_attempt_and_peaks_survive_in_the_journal(tmp_path: pathlib.Path) -> None:
    log = journal.Journal(tmp_path / "runner.jsonl")
    for entry in entries(
        {"event": "segment", "at": 1.0},
        {"event": "started", "at": 2.0, "name": "trainer", "role": "trainer", "attempt": 3},
        {"event": "beat", "at": 3.0, "peaks": {"trainer": 7, "total": 9}},
        {"event": "beat", "at": 4.0, "peaks": {"trainer": 5, "total": 11}},
    ):
        log.write(entry)
    log.close()
    found = journal.read(tmp_path / "runner.jsonl")
    assert journal.last_attempt(found) == 3
    assert journal.peaks(found) == {"trainer": 7, "total": 11}


def test_line_cut_by_a_crash_is_left_out_and_the_next_one_is_whole(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "runner.jsonl"
    path.write_text(json.dumps({"event": "segment", "at": 1.0}) + '\n{"event": "bea')
    log = journal.Journal(path)
    log.write(journal.Entry(event="beat", at=2.0))
    log.close()
    assert [entry.event for entry in journal.read(path)] == ["segment", "beat"]
