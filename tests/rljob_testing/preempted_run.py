"""The data of one run while pods come and go: the coordinator is its own program, rollout and trainer are played over
the product's own clients.

    volume/      what outlives pods: the coordinator's run directory, the step of the trainer's last checkpoint
    coordinator  a process; SIGTERM ends it, another one continues with the ledger
    rollout      leases groups, takes its time for each, hands them in; asked to stop it releases what it holds
    trainer      fetches batches, commits steps, publishes versions; asked to stop it leaves a checkpoint

No model: a step takes the seconds that the test says. What the ledger says in the end is what a real run's would.
"""

import asyncio
import collections
import contextlib
import functools
import itertools
import pathlib
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from rljob_api import enums, errors, process_config, types
from rljob_testing import examples, makers
from rljob_workers.coordinator.ledger import audit, retention
from rljob_workers.coordinator.ledger.database import Database
from rljob_workers.local import prepare
from rljob_workers.local.rundir import layout
from rljob_workers.rpc import train, work
from rljob_workers.runtime import retry
from rljob_workers.weights.backends import grpc_store

T = TypeVar("T")

HOST, NAME = "127.0.0.1", "addition-cpu"
PROMPTS, MEMBERS, CHECKPOINT_EVERY = 8, 2, 5
_LAYOUT = types.Layout(layout_id="layout", tensors=(), image_bytes=5)
_PATIENCE_S, _POLL_S, _END_S = 120.0, 1.0, 60.0


class Pace(NamedTuple):
    """Seconds that a group and the update of a step take."""

    group_s: float = 0.0
    step_s: float = 0.0


class Trained(NamedTuple):
    """What the ledger says of a run: groups with their prompts by step, when steps ended and in which attempt, and what
    the ledger's audit finds.
    """

    groups: dict[int, list[tuple[str, str]]]
    ends: dict[int, tuple[int, float]]
    violations: list[str]

    @property
    def usual_step_s(self) -> float:
        """Return the median seconds of a step that another one of the same attempt preceded."""
        ends = [self.ends[step] for step in sorted(self.ends)]
        pairs = itertools.pairwise(ends)
        return statistics.median(after - before for (first, before), (second, after) in pairs if first == second)


class Volume:
    """What a run keeps while none of its pods is there. completed: steps that its trainers committed."""

    def __init__(self, folder: pathlib.Path, *, max_steps: int, settings: Sequence[str] = ()) -> None:
        """Write the configs of all roles."""
        synchronous = (
            f"spec.maxSteps={max_steps}",
            f"spec.algorithm.promptsPerStep={PROMPTS}",
            f"spec.algorithm.groupSize={MEMBERS}",
            # Of a synchronous run it is known beforehand which step trains which prompts.
            "spec.async.maxOffPolicySteps=0",
            "spec.data.filterGroups.enabled=false",
            "spec.evaluation.suites=[]",
            "spec.evaluation.beforeTraining=false",
        )
        self._directory = layout.RunDir(folder / "run")
        manifest = prepare.read_manifest(examples.EXAMPLES / f"{NAME}.yaml", [*synchronous, *settings])
        identity = self._directory.admit(name=NAME, spec=manifest.spec, manifest_dir=manifest.folder)
        self._directory.claim(identity, manifest.text)
        resolved = prepare.resolve_here(manifest, run_dir=self._directory.path, uid=identity.uid)
        for each in resolved.configs:
            self.path(each.role).write_text(each.model_dump_json())
        config = next(each for each in resolved.configs if each.role is enums.Role.COORDINATOR)
        assert isinstance(config, process_config.CoordinatorConfig)
        self.config = config
        self._checkpoint = folder / "checkpoint"
        self.completed = 0

    def path(self, role: enums.Role) -> pathlib.Path:
        """Return the file of a role's config."""
        return self._directory.configs / f"{role}.json"

    def log(self, role: enums.Role) -> pathlib.Path:
        return self._directory.logs / f"{role}.jsonl"

    @property
    def address(self) -> str:
        return f"{HOST}:{self.config.control_port}"

    @property
    def checkpoint(self) -> int:
        """Return the step of the last checkpoint, 0 without one."""
        return int(self._checkpoint.read_text()) if self._checkpoint.exists() else 0

    def save(self, step: int) -> None:
        self._checkpoint.write_text(str(step))

    @contextlib.asynccontextmanager
    async def coordinator(self) -> AsyncIterator[None]:
        """Run the coordinator's program for as long as the context lasts."""
        role = enums.Role.COORDINATOR
        command = [sys.executable, "-m", "rljob_workers.coordinator", "--config", str(self.path(role))]
        with self.log(role).open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            try:
                await asyncio.to_thread(process.wait, _END_S)
            finally:
                process.kill()

    def ledger(self) -> Database:
        """Open the ledger to read it; the caller closes it."""
        return Database(pathlib.Path(self.config.state_dir) / "ledger.sqlite", read_only=True)

    def trained(self) -> Trained:
        """Return what the ledger says; nothing writes to it now."""
        ledger = self.ledger()
        groups = collections.defaultdict[int, list[tuple[str, str]]](list)
        sql = "SELECT step, group_id, prompt_id FROM groups WHERE state = 'trained'"
        for row in ledger.all(sql):
            groups[row["step"]].append((row["group_id"], row["prompt_id"]))
        for member in retention.everything(ledger):
            if member.fate == "trained" and member.step is not None:
                groups[member.step].append((member.group_id, member.ref.prompt_id))
        ends = {
            row["step"]: (row["attempt"], row["trained_at"])
            for row in ledger.all("SELECT step, attempt, trained_at FROM steps WHERE state = 'trained'")
        }
        violations = audit.audit(ledger, max_off_policy_steps=0)
        ledger.close()
        return Trained({step: sorted(members) for step, members in sorted(groups.items())}, ends, violations)


async def rollout(volume: Volume, pace: Pace, stop: asyncio.Event, *, pod: str = "rollout-0") -> None:
    """Be a rollout until asked to stop: what is not handed in by then is released."""
    client = work.WorkClient(address=volume.address, tls=None)
    try:
        await _generate(client, pace, stop, pod=pod)
    except errors.UnavailableError:
        # At the end of a run the coordinator may go first.
        if not stop.is_set():
            raise
    finally:
        await client.close()


async def _generate(client: work.WorkClient, pace: Pace, stop: asyncio.Event, *, pod: str) -> None:
    boot_id = uuid.uuid4().hex
    session = await _patiently(lambda: client.register(pod=pod, boot_id=boot_id, initial_state_hash="hash-0"), stop)
    version = session.head_version
    while not stop.is_set():
        ask = functools.partial(client.lease, capacity=4, serving_version=version, wait_s=0.2)
        for lease in (await _patiently(ask, stop)).leases:
            if await _asked_within(stop, pace.group_s):
                await client.release(lease.lease_id, "drained")
                continue
            group = makers.make_group(
                lease_id=lease.lease_id, group_id=lease.group_id, attempt=lease.attempt, versions=version
            )
            await _patiently(functools.partial(client.submit, group), stop)
        served = await _beat(client, version, stop)
        # What it is asked to serve is served at once, and said.
        version = served if served == version else await _beat(client, served, stop)


async def _beat(client: work.WorkClient, version: types.VersionId, stop: asyncio.Event) -> types.VersionId:
    """Say which version is served; return the one that should be."""
    beat = functools.partial(
        client.heartbeat, lease_ids=(), serving_version=version, receiver_state=enums.ReceiverState.SERVING,
        load=types.RolloutLoad(), syncs=(), draining=stop.is_set(),
    )  # fmt: skip
    return (await _patiently(beat, stop)).load_version


async def trainer(volume: Volume, pace: Pace, stop: asyncio.Event, *, attempt: int) -> enums.ExitCode:
    """Be an attempt of the trainer; return its exit code."""
    player = _Trainer(volume, pace, attempt=attempt)
    try:
        await _patiently(lambda: asyncio.to_thread(player.register))
        while (code := await asyncio.to_thread(player.step, stop.is_set())) is None:
            pass
        return code
    finally:
        player.close()


class _Trainer:
    """Makes blocking calls, as a rank does."""

    def __init__(self, volume: Volume, pace: Pace, *, attempt: int) -> None:
        self._volume, self._pace, self._attempt, self._completed = volume, pace, attempt, volume.checkpoint
        self._client = train.BatchClient(address=volume.address, tls=None)
        store = f"{HOST}:{volume.config.store_port}"
        self._publisher = grpc_store.WeightPublisher(control_address=volume.address, store_address=store, tls=None)
        self._head, self._layout_sent = types.VersionId(0), False

    def register(self) -> None:
        session = self._client.register(
            pod=f"trainer-{self._attempt}", boot_id=uuid.uuid4().hex, attempt=self._attempt, rank=0,
            resume_step=self._completed, initial_state_hash="hash-0",
        )  # fmt: skip
        self._publisher.session, self._head = session.token, session.head_version
        if self._completed:
            self._publish()

    def step(self, stop: bool) -> enums.ExitCode | None:
        """Ask for a batch and train it; return the exit code where there is none to come."""
        header, _ = self._client.fetch(step=self._completed + 1, rank=0, world_size=1, wait_s=_POLL_S, stop=stop)
        if header.kind is enums.BatchKind.BATCH:
            time.sleep(self._pace.step_s)
            now = time.time()
            self._client.commit_step(step=self._completed + 1, stats={}, started_at=now, finished_at=now)
            self._completed += 1
            self._volume.completed = self._completed
            self._publish()
            if self._completed % CHECKPOINT_EVERY == 0:
                self._save(final=False)
        ends = {
            enums.BatchKind.STOP: enums.ExitCode.STOPPED_ON_REQUEST,
            enums.BatchKind.FINISHED: enums.ExitCode.OK,
        }
        code = ends.get(header.kind)
        if code is not None:
            self._save(final=code is enums.ExitCode.OK)
        return code

    def _publish(self) -> None:
        artifact = retry.retry_sync(
            lambda: self._publisher.upload(memoryview(b"image"), enums.Encoding.WHOLE),
            deadline_s=_PATIENCE_S,
            backoff=_backoff(),
        )
        version = types.WeightVersion(
            job=self._volume.config.job.name, version=types.VersionId(self._head + 1), step=self._completed,
            attempt=self._attempt, parent=self._head, created_at=time.time(), layout_id=_LAYOUT.layout_id, digests={},
            state_hash=f"hash-{self._completed}", artifacts=(artifact,),
        )  # fmt: skip
        self._head = self._publisher.publish(version, None if self._layout_sent else _LAYOUT)
        self._layout_sent = True

    def _save(self, *, final: bool) -> None:
        self._volume.save(self._completed)
        self._client.commit_checkpoint(step=self._completed, uri="checkpoint", seconds=0.1, final=final)

    def close(self) -> None:
        self._client.close()
        self._publisher.close()


async def undisturbed(volume: Volume) -> Trained:
    """Return what a run trains that nothing stops, as quickly as it can."""
    stop = asyncio.Event()
    async with volume.coordinator():
        generating = asyncio.create_task(rollout(volume, Pace(), stop))
        code = await trainer(volume, Pace(), stop, attempt=1)
        assert code is enums.ExitCode.OK
        stop.set()
        await generating
    return volume.trained()


def _backoff() -> retry.Backoff:
    return retry.Backoff(first_s=0.05, most_s=0.5)


async def _patiently(call: Callable[[], Awaitable[T]], stop: asyncio.Event | None = None) -> T:
    """Return the answer of a call that is made until there is one; not again by who is asked to stop."""
    backoff, end = _backoff(), time.monotonic() + _PATIENCE_S
    while True:
        try:
            return await call()
        except errors.UnavailableError:
            if time.monotonic() > end or (stop is not None and stop.is_set()):
                raise
        await asyncio.sleep(backoff.next_delay_s())


async def _asked_within(stop: asyncio.Event, seconds: float) -> bool:
    """Wait so long, or until asked to stop; return which."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds) if seconds else None
    return stop.is_set()
