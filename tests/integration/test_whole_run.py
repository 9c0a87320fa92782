import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import time

import pytest

from rljob_testing.jobs import TinyTask
from rljob_testing.runs import Runs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SYNCHRONOUS = {"maxSteps": 6, "async": {"maxOffPolicySteps": 0}}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, tiny: TinyTask) -> Runs:
    """A synchronous run that nothing disturbed, in `run`."""
    made = Runs(tmp_path_factory.mktemp("undisturbed"), tiny)
    code, output = made.run(made.manifest(**SYNCHRONOUS))
    assert code == 0, output
    return made


def leftovers(run_dir: str) -> list[str]:
    """Return command lines of processes that belong to the run."""
    listing = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listing.splitlines() if run_dir in line and "ps -eo" not in line]


def test_run_trains_evaluates_and_leaves_summary_report_and_model(rljob: Runs) -> None:
    code, output = rljob.run(rljob.manifest(rollout__sampling={"maxTokens": 24, "ignoreEos": True}, maxSteps=5))
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
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        path.name for path in (run_dir / "export").iterdir()
    }
    assert rljob.audit() == ""
    assert leftovers(str(run_dir)) == []
    again, said = rljob.run(rljob.manifest(rollout__sampling={"maxTokens": 24, "ignoreEos": True}, maxSteps=5))
    assert again == 0
    assert "finished; nothing to do" in said


def test_synchronous_run_consumes_only_tokens_of_the_current_version(undisturbed: Runs) -> None:
    assert [line["staleness"] for line in undisturbed.steps()] == [{"0": 4}] * 6
    assert all(line["mixed_version_trajectories"] == 0 for line in undisturbed.steps())
    # Groups without spread are not computed, so a step may have no token to compare; over the run there are some.
    assert any(line["stats"]["mismatch/tokens"] > 0 for line in undisturbed.steps())
    assert undisturbed.audit() == ""


def test_interrupted_run_goes_on_with_the_same_samples_as_one_that_was_not(undisturbed: Runs, rljob: Runs) -> None:
    manifest = rljob.manifest(**SYNCHRONOUS)
    interrupted = rljob.start(manifest)
    wait_for_step(rljob, 2)
    os.kill(interrupted.pid, signal.SIGINT)
    output, _ = interrupted.communicate(timeout=200)
    assert interrupted.returncode == 130, output
    assert "rljob run" in output
    assert leftovers(str(rljob.folder / "run")) == []
    code, output = rljob.run(manifest)
    assert code == 0, output
    assert trained_prompts(rljob) == trained_prompts(undisturbed)
    assert rljob.audit() == ""


@pytest.mark.parametrize("seed", range(int(os.environ.get("RLJOB_KILL_ROUNDS", "1"))))
def test_run_survives_the_death_of_every_role_at_random_moments(rljob: Runs, seed: int) -> None:
    moments = random.Random(seed)
    roles = ["coordinator", "rollout", "verifier", "trainer"]
    moments.shuffle(roles)
    # The moments lie within 12 s; no machine makes 20 steps in that time.
    process = rljob.start(rljob.manifest(maxSteps=20))
    wait_for_step(rljob, 1)
    for role in roles:
        time.sleep(moments.uniform(0.0, 3.0))
        kill(rljob, role)
    output, _ = process.communicate(timeout=800)
    assert process.returncode == 0, output
    assert rljob.summary()["steps"] == 20
    assert rljob.audit() == ""
    assert leftovers(str(rljob.folder / "run")) == []


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


def wait_for_step(rljob: Runs, step: int, limit_s: float = 480) -> None:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        path = rljob.folder / "run/state/history.jsonl"
        if path.exists() and sum('"kind":"step"' in line for line in path.read_text().splitlines()) >= step:
            return
        time.sleep(0.2)
    raise AssertionError(f"step {step} was not reached in {limit_s} s")


def trained_prompts(rljob: Runs) -> list[tuple[int, str]]:
    """Return (step, prompt id) in the order of training."""
    uri = f"file:{rljob.folder}/run/state/ledger.sqlite?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as ledger:
        sql = "SELECT step, prompt_id FROM groups WHERE state = 'trained' ORDER BY step, step_position"
        return list(ledger.execute(sql))
