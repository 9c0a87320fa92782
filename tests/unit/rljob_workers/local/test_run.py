"""The whole runner as a process of its own, over FAKE programs (rljob_testing.fake_roles)."""

import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from rljob_testing import marked
from rljob_workers.local import processes

LIMIT_S = 120.0
# What the manifest leaves unsaid: spec.rollout.drainSeconds.
DRAIN_S = 120.0
MANIFEST = """
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: small}
spec:
  maxSteps: %(steps)d
  model: {name: "builtin:smollm2-135m-instruct"}
  data: {template: "raw", train: [{name: t, path: t.jsonl, maxPromptTokens: 32}]}
  algorithm: {groupSize: 4, promptsPerStep: 2, loss: {proximal: Recompute, clipHigh: "0.28"}}
  rollout: {engine: {maxModelLen: 64, maxNumSeqs: 4}, sampling: {maxTokens: 8}}
  verifier: {rewards: [{name: sum, type: exact}]}
  checkpoint: {everySteps: 5}
"""
DRIVER = """
import pathlib, sys
from rljob_api import errors
from rljob_workers.local import prepare, session
def programs(role):
    return (sys.executable, "-m", "rljob_testing.fake_roles", str(role))
try:
    manifest = prepare.read_manifest(pathlib.Path(sys.argv[1]))
    path = pathlib.Path(sys.argv[2])
    sys.exit(session.run_job(manifest, path=path, skip_check=False, stream=sys.stdout, programs=programs))
except errors.ManifestError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
"""


def wait_for(holds: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.02)


@dataclasses.dataclass
class Stage:
    """A job with fake programs, its run directory, and everything that was started for it."""

    folder: pathlib.Path
    started: list["subprocess.Popen[str]"] = dataclasses.field(default_factory=list)

    @property
    def run_dir(self) -> pathlib.Path:
        return self.folder / "run"

    @property
    def events(self) -> list[str]:
        path = self.folder / "events"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def told_steps(self) -> int:
        """Return how many steps the runner has noticed."""
        path = self.run_dir / "runner.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return sum(json.loads(line)["event"] == "step" for line in lines)

    @property
    def step(self) -> int:
        path = self.folder / "step"
        return int(path.read_text()) if path.exists() else 0

    @property
    def temporary(self) -> pathlib.Path:
        """Return what is the system's own folder for temporary files to the run."""
        return self.folder / "system"

    def temporary_files(self) -> list[str]:
        """Return what roles left, in the system's folder and in the run's own."""
        return [path.name for root in (self.temporary, self.run_dir) for path in root.rglob("fake_*")]

    def begin(self, steps: int = 30) -> "subprocess.Popen[str]":
        (self.folder / "job.yaml").write_text(MANIFEST % {"steps": steps})
        (self.folder / "t.jsonl").write_text(json.dumps({"prompt": marked.PROMPT, "answer": marked.GOLD}) + "\n")
        self.temporary.mkdir(exist_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(self.folder / "job.yaml"), str(self.run_dir)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # As the command line sets it, before grpc is imported.
            env={
                **os.environ, "RLJOB_FAKE_DIR": str(self.folder), "GRPC_VERBOSITY": "NONE", "HF_TOKEN": marked.SECRET,
                "TMPDIR": str(self.temporary),
            },
        )  # fmt: skip
        self.started.append(process)
        return process

    def pids(self) -> dict[str, int]:
        path = self.run_dir / "pids.json"
        if not path.exists():
            return {}
        return {name: entry["pid"] for name, entry in json.loads(path.read_text()).items() if entry["pid"]}

    def left_over(self) -> list[int]:
        """Return processes, of whatever parent, whose command line names this job's folder."""
        found = []
        for pid in processes.parents():
            try:
                line = pathlib.Path(f"/proc/{pid}/cmdline").read_text()
            except OSError:
                continue
            if str(self.run_dir) in line and pid not in {process.pid for process in self.started}:
                found.append(pid)
        return found


@pytest.fixture
def stage(tmp_path: pathlib.Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.communicate()
    wait_for(lambda: not made.left_over())
    # Whatever became of the run: its prompts and the secrets of its environment are in none of its files.
    for path in made.run_dir.rglob("*"):
        if path.is_file():
            marked.assert_untold(path.read_text(errors="replace"))


def finish(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, out, err


def test_finished_run_ends_in_order_leaves_summary_and_report_and_says_so_when_it_is_started_again(
    stage: Stage,
) -> None:
    code, out, err = finish(stage.begin(steps=6))
    assert (code, err) == (0, "")
    marked.assert_untold(out)
    assert out.startswith("warning: spec.algorithm.loss.clipHigh is '0.28', but a step makes one update")
    ends = [event for event in stage.events if event.endswith("ended")]
    assert ends == ["trainer ended", "rollout ended", "verifier ended", "coordinator ended"]
    assert stage.left_over() == []
    assert stage.temporary_files() == []
    assert list(stage.temporary.iterdir()) == []
    summary = json.loads((stage.run_dir / "summary.json").read_text())
    assert summary["steps"] == 6
    assert summary["reward_mean"] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    assert set(summary["peak_rss_bytes"]) == {"coordinator", "rollout", "verifier", "trainer", "total"}
    assert "<svg" not in (stage.run_dir / "report.html").read_text()
    assert "data:image/svg+xml" in (stage.run_dir / "report.html").read_text()
    assert re.search(r"mean reward \(first 3 steps, last 5\) +0\.200 +0\.400", out)
    count = len(stage.events)
    code, out, _ = finish(stage.begin(steps=6))
    assert code == 0
    assert "is finished" in out
    assert len(stage.events) == count


def test_finished_run_goes_on_from_its_last_checkpoint_when_the_same_job_has_more_steps(stage: Stage) -> None:
    finish(stage.begin(steps=2))
    code, _, err = finish(stage.begin(steps=4))
    assert (code, err) == (0, "")
    assert json.loads((stage.run_dir / "summary.json").read_text())["steps"] == 4
    entries = [json.loads(line) for line in (stage.run_dir / "runner.jsonl").read_text().splitlines()]
    starts = [entry for entry in entries if entry["event"] == "started" and entry["name"] == "trainer"]
    assert [entry["attempt"] for entry in starts] == [1, 2]


def test_ctrl_c_saves_a_checkpoint_and_the_same_command_goes_on_from_it(stage: Stage) -> None:
    hold = stage.folder / "hold"
    hold.touch()
    process = stage.begin(steps=30)
    wait_for(lambda: stage.step >= 7 and stage.told_steps >= 2)
    process.send_signal(signal.SIGINT)
    code, out, _ = finish(process)
    assert code == 130
    hold.unlink()
    stopped_at = stage.step
    assert f"at step {stopped_at} of 30; the last checkpoint is of step {stopped_at}" in out
    assert "To resume: rljob run" in out
    assert re.search(r"step \d+/30  reward \d+\.\d\d", out)
    order = [event for event in stage.events if event.endswith(("ended", "asked to stop"))]
    assert order == ["trainer asked to stop", "trainer ended", "rollout ended", "verifier ended", "coordinator ended"]
    assert stage.left_over() == []
    (stage.folder / "events").unlink()
    again = stage.begin(steps=30)
    wait_for(lambda: "attempt 2" in stage.events)
    assert stage.step >= stopped_at
    assert finish(again)[0] == 0


def test_second_ctrl_c_ends_at_once(stage: Stage) -> None:
    process = stage.begin(steps=1000)
    wait_for(lambda: stage.step >= 1 and "rollout" in stage.pids())
    # A rollout that does not answer SIGTERM holds the orderly end up.
    os.kill(stage.pids()["rollout"], signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    wait_for(lambda: "trainer ended" in stage.events)
    process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    assert finish(process)[0] == 130
    # An orderly end would wait for the rollout for as long as it may drain.
    assert time.monotonic() - begin < DRAIN_S / 4
    assert stage.left_over() == []


def test_run_survives_kill_9_of_each_role_in_turn(stage: Stage) -> None:
    hold = stage.folder / "hold"
    hold.touch()
    process = stage.begin(steps=12)
    wait_for(lambda: stage.step >= 2)
    roles = ("coordinator", "rollout", "verifier", "trainer")
    for role in roles:
        _kill_once_started(stage, role)
    hold.unlink()
    code, out, _ = finish(process)
    assert code == 0
    assert all(f"{role} ended with signal SIGKILL" in out for role in roles)
    assert stage.left_over() == []
    report = (stage.run_dir / "report.html").read_text()
    assert report.count("signal SIGKILL, restart in 1 s (infrastructure failure)") == len(roles)


def _kill_once_started(stage: Stage, role: str) -> None:
    """Kill a role that runs, and wait for the next to say that it has started."""
    # Its own word, too: the second start would else be the first that is reported.
    wait_for(lambda: role in stage.pids() and f"{role} started" in stage.events)
    starts = stage.events.count(f"{role} started")
    os.kill(stage.pids()[role], signal.SIGKILL)
    wait_for(lambda: stage.events.count(f"{role} started") > starts)


def test_kill_9_of_the_runner_leaves_nothing_and_the_same_command_goes_on(stage: Stage) -> None:
    hold = stage.folder / "hold"
    hold.touch()
    process = stage.begin(steps=12)
    wait_for(lambda: stage.step >= 6)
    process.kill()
    process.communicate()
    hold.unlink()
    again = stage.begin(steps=12)
    assert finish(again)[0] == 0
    assert "attempt 2" in stage.events
    assert stage.left_over() == []
    assert stage.temporary_files() == []


def test_configuration_error_of_a_role_fails_the_run_with_its_last_words(stage: Stage) -> None:
    (stage.folder / "rollout.exit").write_text("78")
    code, _, err = finish(stage.begin())
    assert code == 1
    assert "failed before the first step (ConfigurationError)" in err or "failed after step" in err
    assert "rollout cannot go on" in err
    assert str(stage.run_dir / "logs") in err
    assert stage.events.count("rollout started") == 1
    assert stage.left_over() == []


def test_all_problems_of_the_data_are_told_before_those_of_the_model_and_nothing_is_started(stage: Stage) -> None:
    (stage.folder / "coordinator.problems").write_text(
        "error: t.jsonl:3: no column 'answer'\nerror: t.jsonl:9: twice\n"
    )
    (stage.folder / "rollout.problems").write_text("error: spec.model.name is 'x', but there is no such folder\n")
    code, _, err = finish(stage.begin())
    assert code == 2
    assert err.splitlines() == [
        "t.jsonl:3: no column 'answer'",
        "t.jsonl:9: twice",
    ]
    (stage.folder / "coordinator.problems").unlink()
    code, _, err = finish(stage.begin())
    assert (code, err.splitlines()) == (2, ["spec.model.name is 'x', but there is no such folder"])
    assert stage.events == []
    assert not stage.run_dir.exists()


def test_second_run_in_the_same_directory_is_refused_with_the_pid_of_the_first(stage: Stage) -> None:
    first = stage.begin(steps=1000)
    wait_for(lambda: stage.step >= 1)
    code, _, err = finish(stage.begin(steps=1000))
    assert code == 2
    assert f"pid {first.pid}" in err
    assert stage.events.count("trainer started") == 1
