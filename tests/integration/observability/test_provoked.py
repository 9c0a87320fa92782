"""Stalls and alerts, provoked: processes of a whole `rljob run` are stopped, and a real Prometheus evaluates the rules.

The run is the addition example, with real vLLM and DeepSpeed; the operator is a process that asks the run's coordinator
(`rljob_testing/provoking.py` has the picture). Every duration of the rules is a tenth of its own, so that half an hour
takes three minutes; `tests/contract/observability/test_scaled_rules.py` holds that nothing else of them changes. Each
test leaves the run as it found it, and takes a few minutes.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import sqlite3
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

from rljob_api import enums
from rljob_testing import examples, provoking
from rljob_testing.every_example import EVERY_EXAMPLE
from rljob_testing.provoking import Scene
from rljob_testing.runs import RLJOB, RunFolder
from rljob_workers.local import processes
from rljob_workers.rpc import status

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

NAME, FACTOR, STALL_S = "addition-cpu", 10.0, 30
# On a machine that has other work as well.
NAMED_S, FIRED_S, QUIET_S, STEP_S = STALL_S + 120.0, 420.0, 180.0, 600.0
SETTINGS = (
    "spec.maxSteps=5000",
    "spec.algorithm.promptsPerStep=4",
    "spec.algorithm.groupSize=4",
    "spec.async.maxOffPolicySteps=1",
    "spec.data.filterGroups.enabled=false",
    "spec.evaluation.beforeTraining=false",
    "spec.checkpoint.everySteps=1000",
    f"spec.failurePolicy.stall.timeoutSeconds={STALL_S}",
)


class Going:
    """The run that continues, and the scene around it."""

    def __init__(self, runs: RunFolder, scene: Scene) -> None:
        self.runs, self.scene, self.folder = runs, scene, runs.folder / "run"

    def pids(self, name: str) -> list[int]:
        """Return a process of the run and all below it."""
        root = json.loads((self.folder / "pids.json").read_text())[name]["pid"]
        return [root, *processes.descendants(root)]

    def step(self) -> int:
        """Return the newest step of the history."""
        return max((int(str(line["step"])) for line in self.runs.steps()), default=0)

    def ask_to_stop(self) -> None:
        """Let the trainer end with a checkpoint."""
        config = json.loads((self.folder / "configs/coordinator.json").read_text())
        client = status.StatusClient(address=f"{provoking.HOST}:{config['control_port']}", tls=None)
        try:
            client.stop("asked for by a test")
        finally:
            client.close()

    async def why(self) -> dict[str, Any]:
        """Return what `rljob why` says."""
        command = [RLJOB, "why", NAME, "--run-dir", str(self.folder), "--events", "0", "-o", "json"]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    async def moves(self) -> None:
        """Wait for two more steps: the one under way may be of before."""
        wanted = self.step() + 2

        async def made() -> bool:
            return await asyncio.to_thread(self.step) >= wanted

        await self.scene.until(made, within_s=STEP_S, what=f"step {wanted}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def going(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Going]:
    if not os.environ.get(EVERY_EXAMPLE):
        pytest.skip(f"a run whose processes are stopped was not asked for ({EVERY_EXAMPLE}=1)")
    runs = RunFolder(tmp_path_factory.mktemp("provoked"))
    try:
        runs.start(examples.EXAMPLES / f"{NAME}.yaml", settings=SETTINGS)
        await asyncio.to_thread(runs.wait_for_step, 3)
        configs = {
            role: json.loads((runs.folder / f"run/configs/{role}.json").read_text()) for role in enums.STANDARD_ROLES
        }
        ports = {f"{role}-0": int(config["health_port"]) for role, config in configs.items()}
        async with provoking.watching(
            NAME,
            runs.folder,
            coordinator=f"{provoking.HOST}:{configs[enums.Role.COORDINATOR]['control_port']}",
            metrics_ports=ports,
            factor=FACTOR,
            spec={"failurePolicy__stall__timeoutSeconds": STALL_S},
        ) as scene:
            yield Going(runs, scene)
    finally:
        runs.end()


@contextlib.contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    """Hold processes: their connections are still taken, by the kernel, and no one answers."""
    assert pids
    try:
        for pid in pids:
            processes.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            processes.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def locked(ledger: pathlib.Path) -> Iterator[None]:
    """Hold the ledger's file, as a disk would that takes no write."""
    connection = sqlite3.connect(ledger, isolation_level=None)
    try:
        connection.execute("PRAGMA busy_timeout = 30000")
        connection.execute("BEGIN IMMEDIATE")
        yield
    finally:
        connection.close()


@dataclasses.dataclass(frozen=True, slots=True)
class Provoked:
    """A stall: its reason, who is to be named by role and process, what the condition says, what brings it about, and
    what else fires for it.
    """

    reason: str
    role: enums.Role
    pod: str
    said: str
    hold: Callable[[Going], contextlib.AbstractContextManager[None]]
    alerts: tuple[str, ...] = ()


STALLS = (
    Provoked(
        "VerifierSaturated",
        enums.Role.VERIFIER,
        "",
        "; rollout-0 waits for verifier for ",
        lambda run: stopped(run.pids("verifier")),
    ),
    Provoked(
        "RolloutWaitingForTrainer",
        enums.Role.TRAINER,
        "trainer-0",
        "rollout-0 waits for a trainer step (staleness bound) for ",
        lambda run: stopped(run.pids("trainer")),
        alerts=("RLJobNoProgress",),
    ),
    Provoked(
        "Unknown",
        enums.Role.TRAINER,
        "trainer-0",
        "",
        lambda run: stopped([*run.pids("trainer"), *run.pids("rollout")]),
    ),
    Provoked(
        "LedgerStuck",
        enums.Role.COORDINATOR,
        "",
        "LedgerStuck",
        lambda run: locked(run.folder / "state/ledger.sqlite"),
    ),
    Provoked(
        "CoordinatorUnreachable",
        enums.Role.COORDINATOR,
        "",
        "the coordinator's Status is not answered",
        lambda run: stopped(run.pids("coordinator")),
        alerts=("RLJobCoordinatorDown",),
    ),
)


async def is_named(run: Going, stall: Provoked) -> float:
    """Wait until the alert fires with reason and role; return the seconds. Command line and condition agree with it."""
    fired_s = await run.scene.until_fires("RLJobStalled", within_s=NAMED_S, reason=stall.reason, role=stall.role)
    told = await run.why()
    found = told["diagnosis"]
    assert found is not None, told
    assert (found["reason"], found["role"], found["pod"]) == (stall.reason, stall.role, stall.pod), told
    assert await run.scene.stage.condition(NAME, "Stalled") == ("True", stall.reason)
    assert stall.said in await run.scene.message("Stalled")
    assert [(one["reason"], one["role"]) for one in await run.scene.firing("RLJobStalled")] == [
        (stall.reason, stall.role)
    ]
    return fired_s


def note(what: str, fired_s: float, quiet_s: float | None = None) -> None:
    after = "" if quiet_s is None else f", quiet {quiet_s:.0f} s after the end of its cause"
    print(f"{what}: fired after {fired_s:.0f} s{after}")


@pytest.mark.asyncio(loop_scope="module")
async def test_run_that_nobody_disturbs_fires_nothing(going: Going) -> None:
    """Long enough for what holds for three minutes here."""
    began = time.monotonic()
    await going.moves()
    while time.monotonic() - began < 30.0:
        await asyncio.sleep(1.0)
    assert await going.scene.firing() == []
    assert (await going.why())["diagnosis"] is None


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("stall", STALLS, ids=lambda stall: stall.reason)
async def test_stall_is_told_with_its_reason_and_its_culprit_and_ends_with_its_cause(
    going: Going, stall: Provoked
) -> None:
    with stall.hold(going):
        began = time.monotonic()
        fired_s = await is_named(going, stall)
        for alert in stall.alerts:
            await going.scene.until_fires(alert, within_s=FIRED_S)
            note(alert, time.monotonic() - began)
    quiet_s = await going.scene.until_quiet("RLJobStalled", within_s=QUIET_S)
    note(f"RLJobStalled {stall.reason}", fired_s, quiet_s)
    await going.moves()

    async def progresses() -> bool:
        return await going.scene.stage.condition(NAME, "Stalled") == ("False", "Progressing")

    # A machine that is short of time may stand for another half minute in the middle of a step.
    await going.scene.until(progresses, within_s=STEP_S, what="progress")


@pytest.mark.asyncio(loop_scope="module")
async def test_trainer_without_batches_is_told_to_starve_while_it_does(going: Going) -> None:
    """No step ends meanwhile, so what only a finished step counts would show nothing."""
    stall = Provoked(
        "TrainerWaitingForTrajectories",
        enums.Role.ROLLOUT,
        "rollout-0",
        "trainer-0 waits for ",
        lambda run: stopped(run.pids("rollout")),
    )
    with stall.hold(going):
        stalled_s = await is_named(going, stall)
        fired_s = await going.scene.until_fires("RLJobTrainerStarved", within_s=FIRED_S)
        assert {one["alertname"] for one in await going.scene.firing()} >= {"RLJobTrainerStarved", "RLJobStalled"}
    note(f"RLJobStalled {stall.reason}", stalled_s, await going.scene.until_quiet("RLJobStalled", within_s=QUIET_S))
    note(
        "RLJobTrainerStarved",
        stalled_s + fired_s,
        await going.scene.until_quiet("RLJobTrainerStarved", within_s=QUIET_S),
    )
    await going.moves()


@pytest.mark.asyncio(loop_scope="module")
async def test_last_checkpoint_that_does_not_end_is_told_and_the_run_stops_once_it_does(going: Going) -> None:
    """The last of the module: the run is over after it."""
    stall = Provoked(
        "CheckpointStuck",
        enums.Role.TRAINER,
        "trainer-0",
        "rollout-0 waits for ",
        lambda run: stopped(run.pids("trainer")),
    )
    with stall.hold(going):
        await asyncio.to_thread(going.ask_to_stop)
        note(f"RLJobStalled {stall.reason}", await is_named(going, stall))

    async def over() -> bool:
        return (await going.why())["running"] is False

    await going.scene.until(over, within_s=STEP_S, what="end of the run")
    assert going.runs.audit() == ""
