"""A coordinator's process, with rollout and trainer played over the product's own clients.

Anyone who plays decides how many groups come late, are lost or are worth nothing. The addition example is the job.
"""

import asyncio
import contextlib
import dataclasses
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from rljob_api import enums, process_config, types
from rljob_testing import examples, makers, provoking
from rljob_testing.provoking import Scene
from rljob_workers.local import prepare
from rljob_workers.local.rundir import layout
from rljob_workers.rpc import train, work
from rljob_workers.runtime import clock, retry
from rljob_workers.weights.backends import grpc_store

T = TypeVar("T")

NAME = "addition-cpu"
PROMPTS, MEMBERS, BOUND = 8, 2, 1
SETTINGS = (
    "spec.maxSteps=100000",
    f"spec.algorithm.promptsPerStep={PROMPTS}",
    f"spec.algorithm.groupSize={MEMBERS}",
    f"spec.async.maxOffPolicySteps={BOUND}",
    "spec.data.filterGroups.enabled=false",
    "spec.evaluation.suites=[]",
    "spec.evaluation.beforeTraining=false",
)
LAYOUT = types.Layout(layout_id="layout", tensors=(), image_bytes=5)
_STARTED_S, _POLL_S = 120.0, 0.2


class Played:
    """A rollout and a trainer. `late` groups are kept until they are too old; of each round `lost` ones fail."""

    def __init__(self, config: process_config.CoordinatorConfig) -> None:
        """Nothing is sent before `register`."""
        address = f"{provoking.HOST}:{config.control_port}"
        self._rollout = work.WorkClient(address=address, tls=None)
        self._trainer = train.BatchClient(address=address, tls=None)
        self._publisher = grpc_store.WeightPublisher(
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

    async def stand_still(self, act: Callable[[], Awaitable[object]], until: asyncio.Event) -> None:
        """Wait for a batch as a trainer does, and act again and again meanwhile; no group that is accepted may come."""
        waiting = asyncio.create_task(asyncio.to_thread(self._wait_for_batch, until))
        while not until.is_set():
            await act()
            await asyncio.sleep(_POLL_S)
        assert not await waiting, "a batch was made of nothing"

    def _wait_for_batch(self, until: asyncio.Event) -> bool:
        while not until.is_set():
            header, _ = self._trainer.fetch(step=self._step + 1, rank=0, world_size=1, wait_s=2.0, stop=False)
            if header.kind is enums.BatchKind.BATCH:
                return True
        return False

    async def lose_one(self) -> None:
        """Lease a group, and hand it in as one that the verifier lost."""
        for lease in (await self._rollout.lease(capacity=1, serving_version=self._version, wait_s=1.0)).leases:
            await self._submit_lost(lease)

    async def apply(self) -> None:
        """Tell that a version is being taken over, which does not end."""
        await self._tell(enums.ReceiverState.APPLYING)

    async def submit_alike(self) -> enums.TrajectoryOutcome:
        """Hand in one group whose members all have the same reward."""
        (lease,) = (await self._rollout.lease(capacity=1, serving_version=self._version, wait_s=30.0)).leases
        group = makers.make_group(
            lease_id=lease.lease_id, group_id=lease.group_id, attempt=lease.attempt, rewards=[1.0] * MEMBERS
        )
        return (await self._rollout.submit(group)).outcome

    async def _submitted(self, at: int, lease: types.GroupLease) -> bool:
        """Hand in a group that was sampled at a step; return whether a step will take it."""
        answer = await self._rollout.submit(_group(lease, version=at))
        return answer.outcome is enums.TrajectoryOutcome.ACCEPTED

    async def _submit_lost(self, lease: types.GroupLease) -> None:
        failures = [
            types.MemberFailure(sample_index=index, role="verifier", reason="transport") for index in range(MEMBERS)
        ]
        group = dataclasses.replace(_group(lease, version=self._step), trajectories=(), failures=failures)
        await self._rollout.submit(group)

    def _train(self) -> None:
        self._step += 1
        header, _ = self._trainer.fetch(step=self._step, rank=0, world_size=1, wait_s=30.0, stop=False)
        assert header.kind is enums.BatchKind.BATCH, header
        now = time.time()
        self._trainer.commit_step(step=self._step, stats={}, started_at=now, finished_at=now)
        artifact = retry.retry_sync(
            lambda: self._publisher.upload(memoryview(b"image"), enums.Encoding.WHOLE),
            deadline_s=_STARTED_S,
            backoff=_backoff(),
        )
        version = types.WeightVersion(
            job=self._job, version=self._version, step=self._step, attempt=1, parent=self._step - 1, created_at=now,
            layout_id=LAYOUT.layout_id, digests={}, state_hash=f"hash-{self._step}", artifacts=(artifact,),
        )  # fmt: skip
        self._publisher.publish(version, LAYOUT if self._step == 1 else None)

    async def _serve(self) -> None:
        await self._tell(enums.ReceiverState.SERVING)

    async def _tell(self, state: enums.ReceiverState) -> None:
        await self._rollout.heartbeat(
            lease_ids=[lease.lease_id for _, lease in self._kept],
            serving_version=self._version,
            receiver_state=state,
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
    return await retry.retry_async(call, clock=clock.SystemClock(), deadline_s=_STARTED_S, backoff=_backoff())


@contextlib.asynccontextmanager
async def coordinating(
    folder: pathlib.Path, settings: Sequence[str]
) -> AsyncIterator[tuple[Played, process_config.CoordinatorConfig]]:
    """Yield a coordinator's process, and who plays the others; `folder`/run is its run's directory."""
    directory = layout.RunDir(folder / "run")
    manifest = prepare.read_manifest(examples.EXAMPLES / f"{NAME}.yaml", settings)
    identity = directory.admit(name=NAME, spec=manifest.spec, manifest_dir=manifest.folder)
    directory.claim(identity, manifest.text)
    made = prepare.resolve_here(manifest, run_dir=directory.path, uid=identity.uid)
    config = next(config for config in made.configs if config.role is enums.Role.COORDINATOR)
    assert isinstance(config, process_config.CoordinatorConfig)
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


@contextlib.asynccontextmanager
async def watched(
    folder: pathlib.Path, settings: Sequence[str], *, factor: float, spec: Mapping[str, Any]
) -> AsyncIterator[tuple[Played, Scene]]:
    """Yield who plays, after a first step, and the scene of it. factor, spec: what `provoking.watching` takes."""
    async with coordinating(folder, settings) as (both, config):
        await both.round()
        async with provoking.watching(
            NAME,
            folder,
            coordinator=f"{provoking.HOST}:{config.control_port}",
            metrics_ports={"coordinator-0": config.health_port},
            factor=factor,
            spec=spec,
        ) as scene:
            yield both, scene
