"""The real command from start to end, undisturbed and with every role killed."""

import contextlib
import json
import os
import random
import signal
import time

import pytest

from rljob_testing import browser, gate, jobs, packages
from rljob_testing.runs import Runs

TOKEN = "hf_a-token-that-no-line-may-hold"
RECORDER = """
    from rljob_workers.coordinator.trackers import base

    class Recorder(base.Tracker):
        def __init__(self, run, config):
            self._file = (run.folder / "log").open("a")
        def log(self, point):
            assert point.metrics
            print(point.kind, point.step, file=self._file)
        def rewind(self, step):
            print("rewind", step, file=self._file)
        def flush(self):
            self._file.flush()
        def close(self):
            self._file.close()
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_run_trains_evaluates_and_leaves_summary_report_and_model(rljob: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    packages.install(
        rljob.folder, "recorders", entry_points="[rljob.trackers]\nrecorder = recorders:Recorder\n", module=RECORDER
    )
    packages.put_on_path(rljob.folder, monkeypatch)
    changes: dict[str, object] = {
        "rollout__sampling": {"maxTokens": 24, "ignoreEos": True},
        "observability": {
            "trackers": [{"name": "mine", "type": "plugin:recorder"}, {"name": "board", "type": "tensorboard"}]
        },
    }
    code, output = rljob.run(rljob.manifest(maxSteps=5, **changes))
    assert code == 0, output
    summary = rljob.summary()
    assert summary["steps"] == 5
    assert [row["step"] for row in summary["evaluation"]] == [0, 5]
    assert summary["staleness"]["max"] <= 1
    assert summary["trajectories"]["infra_failed"] == 0
    # A version may be skipped when the next one is already there.
    assert summary["weight_updates"]["count"] >= 2
    run_dir = rljob.folder / "run"
    assert (run_dir / "report.html").stat().st_size > 10_000
    if browser.is_there():
        assert browser.console_of(run_dir / "report.html", rljob.folder / "browser") == []
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        path.name for path in (run_dir / "export").iterdir()
    }
    logs = sorted((run_dir / "logs").iterdir())
    assert {path.name.split("-")[0].split(".")[0] for path in logs} >= {"coordinator", "rollout", "verifier", "trainer"}
    for told in (output, *(path.read_text() for path in logs)):
        assert TOKEN not in told
        assert jobs.PROMPT not in told
    assert rljob.audit() == ""
    assert rljob.leftovers() == []
    trackers = run_dir / "state" / "trackers"
    assert sorted((trackers / "mine" / "log").read_text().splitlines()) == [
        "evaluation 0", "evaluation 5", *(f"step {step}" for step in range(1, 6)),
    ]  # fmt: skip
    assert list((trackers / "board").glob("events.out.tfevents.*"))
    assert list((trackers / "board" / "evaluation").glob("events.out.tfevents.*"))
    again, said = rljob.run(rljob.manifest(maxSteps=5, **changes))
    assert again == 0
    assert "finished; nothing to do" in said


@pytest.mark.parametrize("seed", range(int(os.environ.get("RLJOB_KILL_ROUNDS", "1"))))
def test_run_survives_the_death_of_every_role_at_random_moments(rljob: Runs, seed: int) -> None:
    moments = random.Random(seed)
    roles = ["coordinator", "rollout", "verifier", "trainer"]
    moments.shuffle(roles)
    # The last steps are held back until every role was killed, however fast the machine is.
    held = gate.Gate(rljob.folder, steps=10)
    process = rljob.start(rljob.manifest(maxSteps=14, **held.changes()))
    rljob.wait_for_step(1)
    for role in roles:
        time.sleep(moments.uniform(0.0, 2.0))
        kill(rljob, role)
    held.open()
    output, _ = process.communicate(timeout=800)
    assert process.returncode == 0, output
    assert rljob.summary()["steps"] == 14
    assert rljob.audit() == ""
    assert rljob.leftovers() == []


def kill(rljob: Runs, role: str, limit_s: float = 60) -> None:
    """Kill the process that runs the role's program, once there is one: it may just be starting again."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        processes = json.loads((rljob.folder / "run/pids.json").read_text())
        pid = next((int(entry["pid"]) for name, entry in processes.items() if name.startswith(role)), None)
        with contextlib.suppress(ProcessLookupError):
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
                return
        time.sleep(0.1)
    raise AssertionError(f"no {role} ran for {limit_s} s")
