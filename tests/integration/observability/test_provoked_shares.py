"""Alerts about what becomes of trajectories, provoked: stale ones, and those that infrastructure lost.

The coordinator, the operator and Prometheus are processes; the test plays rollout and trainer over the product's own
clients, so that it decides how many groups come late or not at all. Every duration of the rules is a thirtieth of its
own (`tests/contract/observability/test_scaled_rules.py` holds that nothing else of them changes).
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

import pytest
import pytest_asyncio

from rljob_api import names, roles, types
from rljob_testing import examples, makers, provoking
from rljob_testing.provoking import Scene
from rljob_testing.runs import RLJOB
from rljob_workers.local import prepare, rundir
from rljob_workers.runtime import clock, retry
from rljob_workers.transport import batches, weights, work

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
T = TypeVar("T")

EVERY_EXAMPLE = "RLJOB_EVERY_EXAMPLE"
NAME, FACTOR, STARTED_S = "addition-cpu", 30.0, 120.0
# Alerts of at most 30 minutes hold for one here; the rest is for a machine that has other work as well.
FIRED_S, QUIET_S = 300.0, 180.0
PROMPTS, MEMBERS, BOUND = 8, 2, 1
SETTINGS = (
    "spec.maxSteps=100000",
    f"spec.algorithm.promptsPerStep={PROMPTS}",
    f"spec.algorithm.groupSize={MEMBERS}",
    f"spec.async.maxOffPolicySteps={BOUND}",
    "spec.evaluation.suites=[]",
    "spec.evaluation.beforeTraining=false",
)
LAYOUT = types.Layout(layout_id="layout", tensors=(), image_bytes=5)


class Played:
    """A rollout and a trainer. `late` groups are kept until they are too old; of each round `lost` ones fail."""

    def __init__(self, config: roles.CoordinatorConfig) -> None:
        """Nothing is sent before `register`."""
        address = f"{provoking.HOST}:{config.control_port}"
        self._rollout = work.WorkClient(address=address, tls=None)
        self._trainer = batches.BatchClient(address=address, tls=None)
        self._publisher = weights.WeightPublisher(
            control_address=address, store_address=f"{provoking.HOST}:{config.store_port}", tls=None
        )
        self._job, self._step = config.job.name, 0
        self._kept: list[tuple[int, types.GroupLease]] = []
        self.late = self.lost = 0

    async def register(self) -> None:
        """Open both sessions once the coordinator answers."""
        await _patiently(lambda: self._rollout.register(pod="rollout-0", boot_id="r", initial_state_hash="h"))
        session = await asyncio.to_thread(
            self._trainer.register, pod="trainer-0", boot_id="t", attempt=1, rank=0, resume_step=0,
            initial_state_hash="h",
        )  # fmt: skip
        self._publisher.session = session.token

    async def play(self) -> None:
        """Make one step after the other until cancelled."""
        while True:
            await self.round()

    async def round(self) -> None:
        """Lease what a step takes and what is to be late, hand in the former, train it, and serve its weights."""
        lost, num_ready = self.lost, 0
        if not self.late:
            kept, self._kept = self._kept, []
            for at, lease in kept:
                num_ready += await self._submitted(at, lease)
        while num_ready < PROMPTS:
            missing = PROMPTS - num_ready + max(0, self.late - len(self._kept))
            grant = await self._rollout.lease(capacity=missing, serving_version=self._version, wait_s=1.0)
            for lease in grant.leases:
                if lost:
                    await self._submit_lost(lease)
                    lost -= 1
                elif num_ready < PROMPTS:
                    num_ready += await self._submitted(self._step, lease)
                else:
                    self._kept.append((self._step, lease))
        await asyncio.to_thread(self._train)
        await self._serve()
        self._kept = [(at, lease) for at, lease in self._kept if at >= self._step - BOUND]

    @property
    def _version(self) -> types.VersionId:
        return types.VersionId(self._step)

    async def submit_alike(self) -> names.TrajectoryOutcome:
        """Hand in one group whose members all have the same reward."""
        (lease,) = (await self._rollout.lease(capacity=1, serving_version=self._version, wait_s=30.0)).leases
        group = makers.make_group(
            lease_id=lease.lease_id, group_id=lease.group_id, attempt=lease.attempt, rewards=[1.0] * MEMBERS
        )
        return (await self._rollout.submit(group)).outcome

    async def _submitted(self, at: int, lease: types.GroupLease) -> bool:
        """Hand in a group that was sampled at a step; return whether a step will take it."""
        answer = await self._rollout.submit(_group(lease, version=at))
        return answer.outcome is names.TrajectoryOutcome.ACCEPTED

    async def _submit_lost(self, lease: types.GroupLease) -> None:
        failures = [
            types.MemberFailure(sample_index=index, role="verifier", reason="transport") for index in range(MEMBERS)
        ]
        group = dataclasses.replace(_group(lease, version=self._step), trajectories=(), failures=failures)
        await self._rollout.submit(group)

    def _train(self) -> None:
        self._step += 1
        header, _ = self._trainer.fetch(step=self._step, rank=0, world_size=1, wait_s=30.0, stop=False)
        assert header.kind is names.BatchKind.BATCH, header
        now = time.time()
        self._trainer.commit_step(step=self._step, stats={}, started_at=now, finished_at=now)
        artifact = retry.retry_sync(
            lambda: self._publisher.upload(memoryview(b"image")), deadline_s=STARTED_S, backoff=_backoff()
        )
        version = types.WeightVersion(
            job=self._job, version=self._version, step=self._step, attempt=1, parent=self._step - 1, created_at=now,
            layout_id=LAYOUT.layout_id, digests={}, state_hash=f"hash-{self._step}", artifacts=(artifact,),
        )  # fmt: skip
        self._publisher.publish(version, LAYOUT if self._step == 1 else None)

    async def _serve(self) -> None:
        await self._rollout.heartbeat(
            lease_ids=[lease.lease_id for _, lease in self._kept],
            serving_version=self._version,
            receiver_state=names.ReceiverState.SERVING,
            load=types.RolloutLoad(),
            syncs=(),
            draining=False,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._rollout.close()
        self._trainer.close()
        self._publisher.close()


def _group(lease: types.GroupLease, *, version: int) -> types.PromptGroup:
    return makers.make_group(lease_id=lease.lease_id, group_id=lease.group_id, attempt=lease.attempt, versions=version)


def _backoff() -> retry.Backoff:
    return retry.Backoff(first_s=0.05, most_s=0.5)


async def _patiently(call: Callable[[], Awaitable[T]]) -> T:
    return await retry.retry_async(call, clock=clock.SystemClock(), deadline_s=STARTED_S, backoff=_backoff())


@contextlib.asynccontextmanager
async def coordinating(
    folder: pathlib.Path, settings: Sequence[str]
) -> AsyncIterator[tuple[Played, roles.CoordinatorConfig]]:
    """Yield a coordinator's process, and who plays the others; `folder`/run is its run's directory."""
    directory = rundir.RunDir(folder / "run")
    manifest = prepare.read_manifest(examples.EXAMPLES / f"{NAME}.yaml", settings)
    identity = directory.admit(name=NAME, spec=manifest.spec, manifest_dir=manifest.folder)
    directory.claim(identity, manifest.text)
    made = prepare.resolve_here(manifest, run_dir=directory.path, uid=identity.uid)
    config = next(config for config in made.configs if config.role is names.Role.COORDINATOR)
    assert isinstance(config, roles.CoordinatorConfig)
    path = directory.configs / "coordinator.json"
    path.write_text(config.model_dump_json())
    command = [sys.executable, "-m", "rljob_workers.coordinator", "--config", str(path)]
    with (directory.logs / "coordinator.jsonl").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    directory.pids.write_text(json.dumps({"coordinator": {"pid": process.pid, "guard": process.pid}}))
    both = Played(config)
    try:
        await both.register()
        yield both, config
    finally:
        await both.close()
        process.terminate()
        await asyncio.to_thread(process.wait, 60)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def played(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Played, Scene]]:
    if not os.environ.get(EVERY_EXAMPLE):
        pytest.skip(f"minutes of alerts were not asked for ({EVERY_EXAMPLE}=1)")
    folder = tmp_path_factory.mktemp("shares")
    async with coordinating(folder, SETTINGS) as (both, config):
        await both.round()
        watched = provoking.watching(
            NAME,
            folder,
            coordinator=f"{provoking.HOST}:{config.control_port}",
            metrics_ports={"coordinator-0": config.health_port},
            factor=FACTOR,
            spec={},
        )
        async with watched as scene:
            playing = asyncio.create_task(both.play())
            yield both, scene
            assert not playing.done(), playing.exception()
            playing.cancel()


async def names_of(scene: Scene) -> list[str]:
    return sorted(one["alertname"] for one in await scene.firing())


async def share(scene: Scene, rule: str) -> float:
    (found,) = await scene.query(f'{rule}{{rljob="{NAME}"}}')
    return float(found["value"][1])


async def provoked(scene: Scene, alert: str, rule: str, *, expected: Sequence[str]) -> None:
    """Wait until an alert fires, and see that it is the only one with those expected."""
    fired_s = await scene.until_fires(alert, within_s=FIRED_S)
    print(f"{alert}: fired after {fired_s:.0f} s at a share of {await share(scene, rule):.2f}")
    assert await names_of(scene) == sorted(expected)


@pytest.mark.asyncio(loop_scope="module")
async def test_groups_that_come_too_late_are_told_as_stale_until_they_come_in_time(
    played: tuple[Played, Scene],
) -> None:
    both, scene = played
    both.late = PROMPTS
    try:
        await provoked(scene, "RLJobStaleShareHigh", "rljob:stale:share15m", expected=["RLJobStaleShareHigh"])
    finally:
        both.late = 0
    print(f"quiet after {await scene.until_quiet('RLJobStaleShareHigh', within_s=QUIET_S):.0f} s")


@pytest.mark.asyncio(loop_scope="module")
async def test_groups_that_infrastructure_loses_are_a_warning_and_many_of_them_critical(
    played: tuple[Played, Scene],
) -> None:
    both, scene = played
    rule = "rljob:infra_failure:share15m"
    # One group of nine, then eight of sixteen.
    both.lost = 1
    try:
        await provoked(scene, "RLJobInfraFailureShareHigh", rule, expected=["RLJobInfraFailureShareHigh"])
        both.lost = PROMPTS
        worse = "RLJobInfraFailureShareCritical"
        await provoked(scene, worse, rule, expected=["RLJobInfraFailureShareHigh", worse])
    finally:
        both.lost = 0
    print(f"quiet after {await scene.until_quiet('RLJobInfraFailureShareHigh', within_s=QUIET_S):.0f} s")
    assert await scene.firing() == []


async def test_filter_that_takes_out_every_group_is_named_by_the_command_line(tmp_path: pathlib.Path) -> None:
    most = 3
    filtering = ("spec.data.filterGroups.enabled=true", f"spec.data.filterGroups.maxExtraGroups={most}")
    command = [RLJOB, "why", NAME, "--run-dir", str(tmp_path / "run"), "-o", "json"]
    async with coordinating(tmp_path, (*SETTINGS, *filtering)) as (both, _):
        for expected in (None, "AllGroupsFiltered"):
            outcomes = [await both.submit_alike() for _ in range(most if expected is None else 1)]
            assert set(outcomes) == {names.TrajectoryOutcome.FILTERED}
            done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120)
            told = json.loads(done.stdout)["diagnosis"]
            assert (told and told["reason"]) == expected
    assert (told["role"], told["message"]) == ("coordinator", "FilterStarvation")
