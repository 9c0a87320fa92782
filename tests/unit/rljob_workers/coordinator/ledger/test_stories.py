"""The walk of one trajectory and of one weight version, and the waits between them, on a whole coordinator without
sockets.

Rollout and trainer are played by the test; the clock is faked, the ledger is a real file.
"""

import asyncio
import dataclasses
import json
import pathlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import blake3
import pytest

from rljob_api import enums, errors, learning, process_config, types
from rljob_api.wire import codec
from rljob_testing import clock as fake_clock
from rljob_testing import makers
from rljob_workers.coordinator import app, context, dispatch, housekeeping, resume, training
from rljob_workers.coordinator.batching import builder
from rljob_workers.coordinator.ledger import audit, best_steps, database, groups, steps, versions
from rljob_workers.coordinator.reporting import history
from rljob_workers.coordinator.weights import registry
from rljob_workers.runtime import metrics as metrics_module

MakeConfig = Callable[..., process_config.CoordinatorConfig]
SERVING = enums.ReceiverState.SERVING
STATS: dict[str, float] = {str(enums.StepStat.WAIT_S): 1.0, str(enums.StepStat.FORWARD_BACKWARD_S): 3.0}


class Coordinator:
    """A running coordinator; `events` is what its history file says, in order."""

    def __init__(self, config: process_config.CoordinatorConfig, clock: fake_clock.FakeClock) -> None:
        self.config, self.clock = config, clock
        data = resume.load_data(config)
        self.state = resume.open_state(config, data_digest=data.digest, now=clock.now())
        metrics = metrics_module.Metrics(role=enums.Role.COORDINATOR, job=config.job)
        self.metrics = metrics
        self.core: context.CoordinatorContext = app.make_context(
            config, clock=clock, metrics=metrics, data=data, state=self.state
        )
        self.weights, self.trainer = registry.Publishing(self.core), training.Training(self.core)
        self.work = dispatch.Dispatch(self.core)
        self.housekeeper = housekeeping.Housekeeper(self.core, self.weights, self.state.history)
        self.building = asyncio.create_task(self.trainer.builder.run())

    async def register(
        self, role: enums.Role, boot_id: str = "b", attempt: int = 0, resume_step: int = 0, number: int = 0
    ) -> str:
        session = await self.work.register(
            dispatch.Registration(
                role=role, pod=f"{role}-{number}", boot_id=boot_id, attempt=attempt, rank=0, resume_step=resume_step,
                initial_state_hash="h0",
            )
        )  # fmt: skip
        return session.token

    async def beat(
        self, token: str, serving: int, lease_ids: tuple[str, ...] = (), *, offer: types.WeightOffer = types.NO_OFFER
    ) -> types.HeartbeatReply:
        return await self.work.heartbeat(
            token,
            dispatch.Report(
                lease_ids=lease_ids, serving_version=serving, receiver_state=SERVING, load=types.RolloutLoad(),
                syncs=(), offer=offer,
                draining=False,
            ),
        )  # fmt: skip

    async def generate(self, token: str, serving: int, capacity: int = 9) -> list[types.GroupLease]:
        grant = await self.work.lease(token=token, capacity=capacity, serving_version=serving, wait_s=0)
        for lease in grant.leases:
            rewards = [1.0, 0.0][: lease.group_size]
            group = makers.make_group(
                lease_id=lease.lease_id,
                group_id=lease.group_id,
                attempt=lease.attempt,
                rewards=rewards,
                versions=serving,
            )
            answer = await self.work.submit(token, group)
            assert answer.outcome in ("accepted", "recorded"), answer
        return list(grant.leases)

    async def fetch(self, token: str, step: int, *, wait_s: float = 0.0, stop: bool = False) -> training.Reply:
        return await self.trainer.fetch(token=token, step=step, rank=0, world_size=1, wait_s=wait_s, stop=stop)

    async def commit(self, token: str, step: int) -> None:
        now = self.clock.now()
        await self.trainer.commit_step(token=token, step=step, stats=STATS, started_at=now, finished_at=now)

    def store(self, data: bytes, encoding: enums.Encoding) -> types.Artifact:
        name = blake3.blake3(data).hexdigest()
        self.core.artifacts.path(name).write_bytes(data)
        return types.Artifact(artifact_id=name, encoding=encoding, num_bytes=len(data))

    async def publish(
        self,
        token: str,
        step: int,
        attempt: int = 1,
        *,
        whole: bool = True,
        changes: bool = False,
        image: types.Artifact | None = None,
        broadcasts: str = "",
    ) -> int:
        head = (await self.core.ledger.run(versions.head)).version
        artifacts = []
        if changes:
            artifacts.append(self.store(f"changes of {head + 1}".encode(), enums.Encoding.DELTA))
        if whole:
            text = f"weights of step {step}, version {head + 1}, {'all ' * 20}"
            artifacts.append(self.store(text.encode(), enums.Encoding.WHOLE))
        proposal = types.WeightVersion(
            job="job", version=types.VersionId(head + 1), step=step, attempt=attempt, parent=head, created_at=0.0,
            layout_id="layout", digests={0: bytes(16)}, state_hash=f"h{head + 1}", artifacts=tuple(artifacts),
            kind=enums.VersionKind.ANCHOR if whole else enums.VersionKind.DELTA,
            base=head if changes else types.NO_VERSION, base_state_hash=f"h{head}" if changes else "",
            image=image,
        )  # fmt: skip
        layout = types.Layout(layout_id="layout", tensors=(), image_bytes=1)
        answer, version = await self.weights.publish(
            token=token, proposal=proposal, layout=layout, broadcasts=broadcasts
        )
        if answer.outcome == "missing":
            raise errors.WeightsError(answer.detail)
        assert answer.outcome == "accepted", answer
        return version

    async def stored(self) -> list[int]:
        """Return the versions that have artifacts; there are no other files than theirs."""
        left = [version for version in await self.core.ledger.run(versions.stored_versions) if version.artifact_ids]
        names = {name for version in left for name in version.artifact_ids}
        assert {path.name for path in self.core.artifacts.folder.iterdir()} == names
        return [version.version for version in left]

    async def way(self, token: str, version: int, *, have: int, damaged: tuple[str, ...] = ()) -> list[str]:
        """Return version and encoding of each hop."""
        plan = await self.weights.plan(token=token, want=version, have=have, with_layout=False, damaged=damaged)
        return [f"{hop.version} {hop.artifacts[0].encoding}" for hop in plan.chain]

    def events(self) -> list[dict[str, Any]]:
        path = pathlib.Path(self.config.state_dir) / history.FILE_NAME
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def why(self) -> str:
        return self.state.ledger.why_ended

    def close(self) -> None:
        self.building.cancel()
        self.core.ledger.close()
        self.state.lock.close()


@pytest.fixture
async def start(make_config: MakeConfig) -> AsyncIterator[Callable[..., Coordinator]]:
    """Return a starter: a second start on the same directory is a restart after the first was closed."""
    clock = fake_clock.FakeClock()
    running: list[Coordinator] = []

    def go(**settings: Any) -> Coordinator:
        for old in running:
            old.close()
        running[:] = [Coordinator(make_config(**settings), clock)]
        return running[0]

    yield go
    for old in running:
        old.close()


Start = Callable[..., Coordinator]


async def test_the_walk_of_a_trajectory_and_of_a_weight_version(start: Start) -> None:
    run = start()
    rollout, trainer = await run.register(enums.Role.ROLLOUT), await run.register(enums.Role.TRAINER, attempt=1)

    leases = await run.generate(rollout, serving=0)
    assert [lease.version_floor_step for lease in leases] == [0, 0, 0, 0]
    assert {lease.prompt.columns["answer"] for lease in leases} == {"1"}
    header, parts = await run.fetch(trainer, 1)
    assert (header.kind, header.trainer_version, header.minibatches[0]) == (
        enums.BatchKind.BATCH, 0, types.Minibatch(num_tokens=8, num_rows=4),
    )  # fmt: skip
    (batch,) = map(codec.decode_micro_batch, parts)
    # grpo over the rewards (1, 0): +-0.5 / (0.7071 + 1e-6)
    assert sorted({round(advantage, 4) for advantage in batch.advantages}) == [-0.7071, 0.7071]

    assert (await run.work.lease(token=rollout, capacity=1, serving_version=0, wait_s=0)).wait_reason == "staleness"
    await run.commit(trainer, 1)
    assert (await run.beat(rollout, 0)).load_version == 0
    version = await run.publish(trainer, 1)
    assert (await run.beat(rollout, 0)).load_version == version
    # The slot is there, but only for a worker that serves the new weights.
    assert (await run.work.lease(token=rollout, capacity=1, serving_version=0, wait_s=0)).wait_reason == "weights"
    plan = await run.weights.plan(token=rollout, want=version, have=types.NO_VERSION, with_layout=True)
    assert (plan.chain[0].version, plan.sources[0].address) == (version, run.config.store_address)
    await run.beat(rollout, version)
    await run.housekeeper.tick()

    status = await run.housekeeper.current()
    # Four groups of two rows of two sampled tokens came back, and half of them were trained.
    assert status.tokens == {"generated": 4 * 2 * 2, "trained": 8}
    assert (status.step, status.published_version, status.live_version, status.phase) == (1, 1, 1, "Running")
    assert [event["kind"] for event in run.events()] == ["step", "version"]
    (step, _) = run.events()
    assert (step["reward_mean"], step["staleness"], step["rows"], step["tokens"]) == (0.5, {"0": 2}, 4, 8)
    assert step["stats"]["wait_s"] == 1.0


async def line_of_versions(run: Coordinator) -> tuple[str, str]:
    """Publish 1 whole, 2 and 3 as changes, all of step 1; return the tokens of rollout and trainer."""
    rollout, trainer = await run.register(enums.Role.ROLLOUT), await run.register(enums.Role.TRAINER, attempt=1)
    await run.generate(rollout, serving=0, capacity=2)
    await run.fetch(trainer, 1)
    await run.commit(trainer, 1)
    await run.publish(trainer, 1, whole=True, changes=True)
    for _ in range(2):
        await run.publish(trainer, 1, whole=False, changes=True)
    return rollout, trainer


@pytest.mark.covers("weights W-6", "weights 6", "weights 7")
async def test_a_rollout_is_sent_the_shortest_way_also_after_a_restart(start: Start) -> None:
    run = start()
    rollout, _ = await line_of_versions(run)
    for _ in range(2):
        assert await run.way(rollout, 3, have=2) == ["3 delta-1"]
        assert await run.way(rollout, 3, have=0) == ["1 delta-1", "2 delta-1", "3 delta-1"]
        # The model files are at hand.
        assert await run.way(rollout, 3, have=types.NO_VERSION) == ["1 delta-1", "2 delta-1", "3 delta-1"]
        run = start()
        rollout = await run.register(enums.Role.ROLLOUT, boot_id="after")


async def test_a_plan_names_where_the_trainer_of_the_last_version_announces_broadcasts(start: Start) -> None:
    run = start()
    rollout, trainer = await line_of_versions(run)

    async def named() -> list[str]:
        plan = await run.weights.plan(token=rollout, want=1, have=0, with_layout=False)
        return [source.address for source in plan.sources if source.kind is enums.SourceKind.TRAINER]

    assert await named() == []
    await run.publish(trainer, 1, changes=True, broadcasts="10.1.2.3:50055")
    assert await named() == ["10.1.2.3:50055"]
    # Of a trainer that is fenced off nothing is taken.
    next_trainer = await run.register(enums.Role.TRAINER, boot_id="after", attempt=2)
    with pytest.raises(errors.FencedError):
        await run.publish(trainer, 1, changes=True, broadcasts="10.1.2.4:50055")
    assert await named() == ["10.1.2.3:50055"]
    await run.publish(next_trainer, 0, attempt=2)
    assert await named() == []


async def test_a_chain_has_the_digests_of_the_version_that_it_ends_in_and_no_others(start: Start) -> None:
    run = start()
    rollout, _ = await line_of_versions(run)
    chain = (await run.weights.plan(token=rollout, want=3, have=0, with_layout=False)).chain
    assert [bool(manifest.digests) for manifest in chain] == [False, False, True]
    assert all(manifest.state_hash for manifest in chain)


@pytest.mark.covers("weights W-14", "weights 8-4")
async def test_an_artifact_that_is_damaged_where_it_is_stored_goes_once_a_rollout_has_met_it(start: Start) -> None:
    run = start()
    rollout, _ = await line_of_versions(run)
    (first,) = (await run.weights.plan(token=rollout, want=1, have=0, with_layout=False)).chain
    damaged = first.artifacts[0].artifact_id
    assert await run.way(rollout, 3, have=0, damaged=(damaged,)) == ["1 delta-1", "2 delta-1", "3 delta-1"]
    run.core.artifacts.path(damaged).write_bytes(b"changes of l")
    assert await run.way(rollout, 3, have=0, damaged=(damaged,)) == ["1 raw", "2 delta-1", "3 delta-1"]


@pytest.mark.covers("weights 7")
async def test_the_trainer_is_asked_once_for_a_head_that_nothing_stored_leads_to(start: Start) -> None:
    run = start()
    rollout, trainer = await line_of_versions(run)
    (newest,) = (await run.weights.plan(token=rollout, want=3, have=2, with_layout=False)).chain
    run.core.artifacts.remove(newest.artifacts[0].artifact_id)
    with pytest.raises(errors.WeightsError, match="nothing that is stored leads to version 3"):
        await run.way(rollout, 3, have=2)
    assert [(await run.fetch(trainer, 2))[0].lost_version for _ in range(2)] == [3, types.NO_VERSION]
    whole = run.store(b"all weights", enums.Encoding.WHOLE)
    supplied = dataclasses.replace(
        newest, kind=enums.VersionKind.ANCHOR, base=types.NO_VERSION, base_state_hash="", artifacts=(whole,)
    )
    answer, head = await run.weights.publish(token=trainer, proposal=supplied, layout=None)
    assert (answer.outcome, head) == ("repeated", 3)
    assert await run.way(rollout, 3, have=2) == ["3 raw"]


@pytest.mark.covers("weights W-8")
async def test_changes_whose_base_is_lost_are_not_registered(start: Start) -> None:
    run = start()
    rollout, trainer = await line_of_versions(run)
    for hop in (await run.weights.plan(token=rollout, want=3, have=0, with_layout=False)).chain:
        run.core.artifacts.remove(hop.artifacts[0].artifact_id)
    assert await run.way(rollout, 1, have=types.NO_VERSION) == ["1 raw"]
    with pytest.raises(errors.WeightsError, match="nothing that is stored leads to version 3"):
        await run.publish(trainer, 1, whole=False, changes=True)
    assert await run.publish(trainer, 1, whole=True, changes=True) == 4


# That of the version after `line_of_versions`.
IMAGE = types.Artifact(
    artifact_id="h4",
    encoding=enums.Encoding.IMAGE,
    num_bytes=2,
    piece_bytes=1,
    pieces=bytes(2 * enums.PIECE_DIGEST_BYTES),
)


@pytest.mark.covers("weights 7")
async def test_a_rollout_that_starts_is_sent_to_one_that_has_the_image_until_that_one_fails_it(start: Start) -> None:
    run = start()
    rollout, trainer = await line_of_versions(run)
    (first,) = (await run.weights.plan(token=rollout, want=1, have=0, with_layout=False)).chain
    run.core.artifacts.remove(first.artifacts[0].artifact_id)
    await run.publish(trainer, 1, whole=False, changes=True, image=IMAGE)
    late = await run.register(enums.Role.ROLLOUT, number=1)
    from_store = ["1 raw", "2 delta-1", "3 delta-1", "4 delta-1"]
    assert await run.way(late, 4, have=types.NO_VERSION) == from_store
    await run.beat(rollout, 4, offer=types.WeightOffer(address="first:1", artifact_ids=("h4",)))
    assert await run.way(late, 4, have=types.NO_VERSION) == ["4 image"]
    assert await run.way(late, 4, have=3) == ["4 delta-1"]
    stored = await run.weights.plan(token=late, want=4, have=types.NO_VERSION, with_layout=False, only_stored=True)
    assert [hop.version for hop in stored.chain] == [1, 2, 3, 4]
    answer = await run.weights.sources(token=late, artifact_id="h4", have=b"", failed=())
    assert [source.address for source in answer.sources] == ["first:1"]
    await run.weights.sources(token=late, artifact_id="h4", have=b"", failed=("first:1",))
    assert await run.way(late, 4, have=types.NO_VERSION) == from_store


@pytest.mark.covers("weights W-8")
async def test_a_version_that_is_refused_leaves_no_image_behind(start: Start) -> None:
    run = start()
    rollout, trainer = await line_of_versions(run)
    for hop in (await run.weights.plan(token=rollout, want=3, have=0, with_layout=False)).chain:
        run.core.artifacts.remove(hop.artifacts[0].artifact_id)
    with pytest.raises(errors.WeightsError, match="nothing that is stored leads to version 3"):
        await run.publish(trainer, 1, whole=False, changes=True, image=IMAGE)
    assert await run.publish(trainer, 1, whole=True) == 4
    await run.beat(rollout, 4, offer=types.WeightOffer(address="first:1", artifact_ids=("h4",)))
    assert await run.way(rollout, 4, have=types.NO_VERSION) == ["4 raw"]


@pytest.mark.covers("weights W-8")
async def test_an_image_with_another_name_than_the_state_hash_is_refused(start: Start) -> None:
    run = start()
    _, trainer = await line_of_versions(run)
    with pytest.raises(errors.WireError, match="the image of version 4 is h3"):
        await run.publish(trainer, 1, whole=False, changes=True, image=dataclasses.replace(IMAGE, artifact_id="h3"))


@pytest.mark.covers("weights 7")
async def test_what_a_rollout_that_lags_needs_to_catch_up_is_kept(start: Start) -> None:
    run = start()
    rollout, trainer = await line_of_versions(run)
    await run.beat(rollout, 1)
    for version in (4, 5, 6):
        await run.publish(trainer, 1, whole=version == 4, changes=True)
    await run.weights.prune()
    assert await run.way(rollout, 6, have=1) == [f"{version} delta-1" for version in range(2, 7)]
    await run.beat(rollout, 5)
    await run.weights.prune()
    assert await run.stored() == [4, 5, 6]


async def test_a_fetch_waits_until_the_last_group_is_in(start: Start) -> None:
    run = start()
    rollout, trainer = await run.register(enums.Role.ROLLOUT), await run.register(enums.Role.TRAINER, attempt=1)
    await run.generate(rollout, serving=0, capacity=1)
    waiting = asyncio.ensure_future(run.fetch(trainer, 1, wait_s=30))
    while not (status := await run.housekeeper.current()).waiting:
        assert not waiting.done()
    assert [(w.role, w.what, w.on_role) for w in status.waiting] == [("trainer", "1 of 2 groups of step 1", "rollout")]
    await run.generate(rollout, serving=0, capacity=1)
    header, _ = await waiting
    assert header.kind is enums.BatchKind.BATCH
    assert (await run.housekeeper.current()).waiting == ()


async def test_a_lease_that_waits_is_answered_when_its_rollout_serves_another_version(start: Start) -> None:
    """For the version that it served when it asked there is no lease; for the one that it serves now there is."""
    run = start()
    rollout, trainer = await run.register(enums.Role.ROLLOUT), await run.register(enums.Role.TRAINER, attempt=1)
    await run.beat(rollout, 0)
    await run.generate(rollout, serving=0)
    await run.fetch(trainer, 1)
    await run.commit(trainer, 1)
    version = await run.publish(trainer, 1)
    began = run.clock.monotonic()
    waiting = asyncio.ensure_future(run.work.lease(token=rollout, capacity=1, serving_version=0, wait_s=30))
    while not run.core.changes.num_waiting_for_a_lease:
        await asyncio.to_thread(lambda: None)
        assert not waiting.done()
    await run.beat(rollout, 0)
    assert not waiting.done(), "another heartbeat with the same version is no news"
    await run.beat(rollout, version)
    assert (await asyncio.wait_for(waiting, 60)).leases == []
    assert run.clock.monotonic() == began
    grant = await run.work.lease(token=rollout, capacity=1, serving_version=version, wait_s=0)
    assert len(grant.leases) == 1


async def waiting_for_a_lease(run: Coordinator, token: str, **call: Any) -> "asyncio.Future[types.LeaseGrant]":
    """Begin a long poll and return once it waits."""
    before = run.core.changes.num_waiting_for_a_lease
    waiting = asyncio.ensure_future(run.work.lease(token=token, wait_s=30, **call))
    while run.core.changes.num_waiting_for_a_lease == before:
        await asyncio.to_thread(lambda: None)
        assert not waiting.done()
    return waiting


async def test_groups_of_a_version_are_leased_the_moment_that_it_is_published(start: Start) -> None:
    run = start()
    rollout, trainer = await run.register(enums.Role.ROLLOUT), await run.register(enums.Role.TRAINER, attempt=1)
    later = await run.register(enums.Role.ROLLOUT, number=1)
    await run.generate(rollout, serving=0)
    await run.fetch(trainer, 1)
    await run.commit(trainer, 1)
    poll: dict[str, Any] = {"capacity": 2, "serving_version": 0}
    ahead = await waiting_for_a_lease(run, rollout, **poll, ahead=True)
    behind = await waiting_for_a_lease(run, later, **poll, ahead=False)
    version = await run.publish(trainer, 1)
    grant = await asyncio.wait_for(ahead, 60)
    assert [(lease.from_version, lease.version_floor_step) for lease in grant.leases] == [(version, 1)] * 2
    assert not behind.done(), "it cannot take that version for now, and said so"
    behind.cancel()
    # It dies before it serves that version: nothing is lost.
    again = await run.register(enums.Role.ROLLOUT, boot_id="another")
    leases = (await run.work.lease(token=again, capacity=9, serving_version=version, wait_s=0)).leases
    assert {lease.group_id for lease in leases} == {lease.group_id for lease in grant.leases}
    assert audit.audit(run.state.ledger.db, max_off_policy_steps=1) == []


async def test_a_rollout_is_told_what_to_cancel_and_to_load_the_moment_that_a_version_is_published(
    start: Start,
) -> None:
    """eta 1, B 2, four groups of version 0: one is left over when step 2 is packed, and too old for step 3."""
    run = start(on_stale="Drop")
    rollout, trainer = await run.register(enums.Role.ROLLOUT), await run.register(enums.Role.TRAINER, attempt=1)
    await run.beat(rollout, 0)
    announcements = run.work.watch(rollout)
    told = asyncio.ensure_future(anext(announcements))
    # It is not in any heartbeat: what was leased since counts as held, too.
    (late,) = (await run.work.lease(token=rollout, capacity=1, serving_version=0, wait_s=0)).leases
    await run.generate(rollout, serving=0)
    await run.fetch(trainer, 1)
    await run.commit(trainer, 1)
    assert not told.done()
    version = await run.publish(trainer, 1)
    assert await asyncio.wait_for(told, 60) == types.Announcement(cancel=[], load_version=types.VersionId(version))
    await run.generate(rollout, serving=version)
    await run.fetch(trainer, 2)
    told = asyncio.ensure_future(anext(announcements))
    await run.commit(trainer, 2)
    version = await run.publish(trainer, 2)
    assert await asyncio.wait_for(told, 60) == types.Announcement(
        cancel=[late.lease_id], load_version=types.VersionId(version)
    )


async def test_nothing_is_announced_to_a_rollout_that_has_not_said_what_it_holds_and_serves(start: Start) -> None:
    run = start()
    rollout, trainer = await run.register(enums.Role.ROLLOUT), await run.register(enums.Role.TRAINER, attempt=1)
    await run.generate(rollout, serving=0)
    await run.beat(rollout, 0)
    run = start()
    told = asyncio.ensure_future(anext(run.work.watch(rollout)))
    await run.fetch(trainer, 1)
    await run.commit(trainer, 1)
    await run.publish(trainer, 1)
    assert not told.done()
    assert (await run.beat(rollout, 0)).load_version == 1
    await run.generate(rollout, serving=1)
    await run.fetch(trainer, 2)
    await run.commit(trainer, 2)
    await run.publish(trainer, 2)
    assert (await asyncio.wait_for(told, 60)).load_version > 0


async def test_announcements_to_a_session_that_was_replaced_end(start: Start) -> None:
    run = start()
    old = await run.register(enums.Role.ROLLOUT)
    told = asyncio.ensure_future(anext(run.work.watch(old)))
    await run.beat(old, 0)
    await run.register(enums.Role.ROLLOUT, boot_id="another")
    with pytest.raises(errors.FencedError):
        await asyncio.wait_for(told, 60)


async def test_a_rollout_that_evaluates_hears_of_the_head_once_the_evaluation_is_done(start: Start) -> None:
    run = start(suites=True)
    rollout, trainer = await run.register(enums.Role.ROLLOUT), await run.register(enums.Role.TRAINER, attempt=1)
    await run.housekeeper.tick()
    await run.beat(rollout, 0)
    told = asyncio.ensure_future(anext(run.work.watch(rollout)))
    leases = (await run.work.lease(token=rollout, capacity=3, serving_version=0, wait_s=0, ahead=True)).leases
    await run.generate(rollout, serving=0)
    await run.fetch(trainer, 1)
    await run.commit(trainer, 1)
    version = await run.publish(trainer, 1)
    # Nothing but groups of the evaluation's version for a rollout that stays with it.
    grant = await run.work.lease(token=rollout, capacity=9, serving_version=0, wait_s=0, ahead=True)
    assert (grant.leases, grant.wait_reason) == ([], "weights")
    assert not told.done()
    for lease in leases:
        await run.work.submit(
            rollout, makers.make_group(lease_id=lease.lease_id, group_id=lease.group_id, attempt=0, rewards=(1.0,))
        )
    await run.housekeeper.tick()
    assert (await asyncio.wait_for(told, 60)).load_version == version


async def test_a_rollout_that_is_to_go_back_hears_so_from_its_heartbeat_alone(start: Start) -> None:
    """It holds nothing and serves version 1 already, when the evaluation of version 0 needs it."""
    run = start(suites=True)
    rollout, trainer = await run.register(enums.Role.ROLLOUT), await run.register(enums.Role.TRAINER, attempt=1)
    await run.generate(rollout, serving=0)
    await run.fetch(trainer, 1)
    await run.commit(trainer, 1)
    version = await run.publish(trainer, 1)
    await run.housekeeper.tick()
    assert (await run.beat(rollout, version, ("held",))).load_version == version
    told = asyncio.ensure_future(anext(run.work.watch(rollout)))
    assert (await run.beat(rollout, version)).load_version == 0
    await run.generate(rollout, serving=version)
    assert not told.done()
    told.cancel()


async def test_groups_of_an_evaluation_are_leased_with_the_version_that_it_is_of(start: Start) -> None:
    run = start(suites=True, resume_from={"job": "old"})
    rollout, trainer = await run.register(enums.Role.ROLLOUT), await run.register(enums.Role.TRAINER, attempt=1)
    await run.housekeeper.tick()
    await run.beat(rollout, 0)
    assert await run.publish(trainer, 0) == 1
    await run.housekeeper.tick()
    leases = (await run.work.lease(token=rollout, capacity=3, serving_version=0, wait_s=0, ahead=True)).leases
    assert [(lease.kind, lease.from_version, lease.pinned_version) for lease in leases] == [
        (enums.GroupKind.EVALUATION, 1, 1)
    ] * 3


async def test_a_fetch_that_waited_in_vain_is_told_what_is_missing(start: Start) -> None:
    run = start()
    trainer = await run.register(enums.Role.TRAINER, attempt=1)
    waiting = asyncio.ensure_future(run.fetch(trainer, 1, wait_s=5))
    while not waiting.done():
        await run.clock.advance(1.0)
        await asyncio.to_thread(lambda: None)
    header, parts = await waiting
    assert (header.kind, header.wait_reason, parts) == (enums.BatchKind.NOT_READY, "0 of 2 groups of step 1", [])


@pytest.mark.covers("algorithms 2.3")
async def test_under_wait_a_step_waits_for_stragglers_that_would_grow_too_old_and_takes_them(start: Start) -> None:
    """eta 1, B 2: four groups of version 0; two train step 1, and step 2 is the last that may take the others."""
    run = start(on_stale="Wait")
    rollout, trainer = await run.register(enums.Role.ROLLOUT), await run.register(enums.Role.TRAINER, attempt=1)
    stragglers = (await run.work.lease(token=rollout, capacity=2, serving_version=0, wait_s=0)).leases
    await run.generate(rollout, serving=0)
    assert (await run.fetch(trainer, 1))[0].kind is enums.BatchKind.BATCH
    await run.commit(trainer, 1)
    await run.publish(trainer, 1)
    await run.beat(rollout, 1, tuple(lease.lease_id for lease in stragglers))
    assert len(await run.generate(rollout, serving=1)) == 2
    header, _ = await run.fetch(trainer, 2)
    assert (header.kind, header.wait_reason) == (enums.BatchKind.NOT_READY, "the oldest groups")
    for lease in stragglers:
        await run.work.submit(
            rollout,
            makers.make_group(lease_id=lease.lease_id, group_id=lease.group_id, attempt=lease.attempt, versions=0),
        )
    header, _ = await run.fetch(trainer, 2)
    assert header.kind is enums.BatchKind.BATCH
    await run.commit(trainer, 2)
    await run.housekeeper.tick()
    (step,) = [event for event in run.events() if event["kind"] == "step" and event["step"] == 2]
    assert step["staleness"] == {"1": 2}
    assert step["trajectories"] == {"accepted": 12}, "six groups of two rows, and none of them stale"


async def test_the_evaluation_before_training_holds_rollouts_on_version_0_until_it_is_done(start: Start) -> None:
    run = start(suites=True)
    rollout, trainer = await run.register(enums.Role.ROLLOUT), await run.register(enums.Role.TRAINER, attempt=1)
    await run.housekeeper.tick()
    leases = (await run.work.lease(token=rollout, capacity=3, serving_version=0, wait_s=0)).leases
    assert [(lease.kind, lease.pinned_version, lease.sampling.greedy) for lease in leases] == [
        (enums.GroupKind.EVALUATION, 0, True)
    ] * 3
    assert [lease.prompt.prompt_id for lease in leases] == ["e0", "e1", "e2"]
    await run.generate(rollout, serving=0)
    await run.fetch(trainer, 1)
    await run.commit(trainer, 1)
    await run.publish(trainer, 1)
    assert (await run.beat(rollout, 0)).load_version == 0
    for lease in leases:
        group = makers.make_group(lease_id=lease.lease_id, group_id=lease.group_id, attempt=0, rewards=(1.0,))
        await run.work.submit(rollout, group)
    await run.housekeeper.tick()
    assert (await run.beat(rollout, 0)).load_version == 1
    (result,) = (await run.housekeeper.current()).evaluations
    assert (result.suite, result.step, result.version, result.accuracy, result.n) == ("held_out", 0, 0, 1.0, 3)
    written = pathlib.Path(run.config.state_dir) / "eval_results" / "0_held_out.json"
    assert [line["id"] for line in json.loads(written.read_text(encoding="utf-8"))] == ["e0", "e1", "e2"]
    accepted = (await run.core.ledger.run(groups.counts)).accepted
    assert accepted == 4  # evaluation is in no staleness counter


async def test_a_fork_is_evaluated_on_the_first_version_that_its_trainer_publishes(start: Start) -> None:
    run = start(suites=True, resume_from={"job": "old"})
    rollout, trainer = await run.register(enums.Role.ROLLOUT), await run.register(enums.Role.TRAINER, attempt=1)
    await run.housekeeper.tick()
    waiting = await run.work.lease(token=rollout, capacity=3, serving_version=0, wait_s=0)
    assert (waiting.leases, waiting.wait_reason) == ([], enums.WaitReason.WEIGHTS)
    assert await run.publish(trainer, 0) == 1
    await run.housekeeper.tick()
    assert (await run.beat(rollout, 0)).load_version == 1
    leases = (await run.work.lease(token=rollout, capacity=3, serving_version=1, wait_s=0)).leases
    assert [(lease.kind, lease.pinned_version) for lease in leases] == [(enums.GroupKind.EVALUATION, 1)] * 3


async def the_only_step(run: Coordinator) -> tuple[str, int]:
    """Train and save a run of one step; return the rollout's token and the version that is to be evaluated."""
    rollout, trainer = await run.register(enums.Role.ROLLOUT), await run.register(enums.Role.TRAINER, attempt=1)
    await run.housekeeper.tick()
    await run.generate(rollout, serving=0)
    await run.housekeeper.tick()
    await run.fetch(trainer, 1)
    await run.commit(trainer, 1)
    version = await run.publish(trainer, 1)
    assert (await run.fetch(trainer, 2))[0].kind is enums.BatchKind.FINISHED
    await run.trainer.commit_checkpoint(token=trainer, step=1, uri="u", seconds=1.0, final=True)
    await run.housekeeper.tick()
    return rollout, version


async def test_a_run_is_finished_after_the_last_step_its_checkpoint_and_its_evaluation(start: Start) -> None:
    run = start(suites=True, max_steps=1)
    rollout, version = await the_only_step(run)
    assert not (await run.beat(rollout, version)).finished
    assert (await run.housekeeper.current()).phase is enums.Phase.EVALUATING
    await run.generate(rollout, serving=version)
    await run.housekeeper.tick()
    assert (await run.beat(rollout, version)).finished
    assert (await run.work.lease(token=rollout, capacity=1, serving_version=version, wait_s=9)).finished
    assert (await run.housekeeper.current()).phase is enums.Phase.FINISHED
    assert [event["kind"] for event in run.events()] == [
        "evaluation", "evaluation_metrics", "step", "version", "checkpoint", "evaluation", "evaluation_metrics",
    ]  # fmt: skip
    violations = await run.core.ledger.run(lambda ledger: audit.audit(ledger.db, max_off_policy_steps=1))
    assert violations == []


async def test_a_finished_run_that_is_started_again_with_a_later_end_trains_and_evaluates_up_to_it(
    start: Start,
) -> None:
    run = start(suites=True, max_steps=1)
    rollout, first = await the_only_step(run)
    await run.generate(rollout, serving=first)
    await run.housekeeper.tick()
    assert (await run.housekeeper.current()).phase is enums.Phase.FINISHED

    run = start(suites=True, max_steps=2)
    rollout = await run.register(enums.Role.ROLLOUT, boot_id="again")
    # Rollouts are there before the trainer is, and must not be sent home.
    assert not (await run.beat(rollout, first)).finished
    trainer = await run.register(enums.Role.TRAINER, boot_id="again", attempt=2, resume_step=1)
    await run.generate(rollout, serving=first)
    assert (await run.fetch(trainer, 2))[0].kind is enums.BatchKind.BATCH
    await run.commit(trainer, 2)
    second = await run.publish(trainer, 2, attempt=2)
    assert (await run.fetch(trainer, 3))[0].kind is enums.BatchKind.FINISHED
    await run.trainer.commit_checkpoint(token=trainer, step=2, uri="v", seconds=1.0, final=True)
    await run.housekeeper.tick()
    await run.generate(rollout, serving=second)
    await run.housekeeper.tick()
    status = await run.housekeeper.current()
    assert (status.phase, status.step, status.max_steps) == (enums.Phase.FINISHED, 2, 2)
    assert [result.step for result in status.evaluations] == [0, 1, 2], "before training, and at each end"
    violations = await run.core.ledger.run(lambda ledger: audit.audit(ledger.db, max_off_policy_steps=1))
    assert violations == []


@pytest.mark.covers("workflows 11")
async def test_without_a_step_to_train_the_run_is_an_evaluation_alone(start: Start) -> None:
    run = start(suites=True, evaluates_only=True)
    rollout = await run.register(enums.Role.ROLLOUT)
    await run.housekeeper.tick()
    assert (await run.housekeeper.current()).phase is enums.Phase.EVALUATING
    leases = (await run.work.lease(token=rollout, capacity=9, serving_version=0, wait_s=0)).leases
    assert [lease.kind for lease in leases] == [enums.GroupKind.EVALUATION] * 3
    for lease in leases:
        group = makers.make_group(lease_id=lease.lease_id, group_id=lease.group_id, attempt=0, rewards=(1.0,))
        await run.work.submit(rollout, group)
    assert not (await run.beat(rollout, 0)).finished
    await run.housekeeper.tick()
    assert (await run.beat(rollout, 0)).finished
    assert (await run.housekeeper.current()).phase is enums.Phase.FINISHED
    written = pathlib.Path(run.config.state_dir) / "eval_results" / "0.json"
    found = json.loads(written.read_text(encoding="utf-8"))
    assert (found["step"], found["version"], found["missing"]) == (0, 0, {})
    assert found["metrics"]["eval/held_out/accuracy"] == found["metrics"]["eval/average/accuracy"] == 1.0
    await run.housekeeper.refresh()
    for metric in ("accuracy", "score", "avg_at_k", "pass_at_k"):
        assert _sample(run, "rljob_eval_score", suite="held_out", metric=metric) == 1.0


async def test_a_restarted_coordinator_serves_the_same_bytes_and_goes_on(start: Start) -> None:
    run = start()
    rollout, trainer = await run.register(enums.Role.ROLLOUT), await run.register(enums.Role.TRAINER, attempt=1)
    await run.generate(rollout, serving=0)
    before = await run.fetch(trainer, 1)
    run = start()
    assert await run.fetch(trainer, 1) == before
    await run.commit(trainer, 1)
    await run.housekeeper.tick()
    assert [event["kind"] for event in run.events()] == ["restart", "step"]
    assert [pod.role for pod in (await run.housekeeper.current()).pods] == ["rollout", "trainer"]


async def test_a_stop_is_answered_at_the_next_step_and_the_run_is_stopped_after_the_checkpoint(start: Start) -> None:
    run = start()
    rollout, trainer = await run.register(enums.Role.ROLLOUT), await run.register(enums.Role.TRAINER, attempt=1)
    await run.generate(rollout, serving=0)
    await run.fetch(trainer, 1)
    assert await run.trainer.stop() == 1
    assert (await run.fetch(trainer, 1))[0].kind is enums.BatchKind.BATCH
    await run.commit(trainer, 1)
    assert (await run.fetch(trainer, 2, stop=True))[0].kind is enums.BatchKind.STOP
    assert (await run.housekeeper.current()).phase is enums.Phase.STOPPING
    await run.trainer.commit_checkpoint(token=trainer, step=1, uri="u", seconds=1.0, final=False)
    assert (await run.housekeeper.current()).phase is enums.Phase.STOPPED
    await run.register(enums.Role.TRAINER, boot_id="b2", attempt=2, resume_step=1)
    assert (await run.housekeeper.current()).phase is enums.Phase.RUNNING


async def test_a_waiting_fetch_learns_of_a_stop_at_once(start: Start) -> None:
    run = start()
    trainer = await run.register(enums.Role.TRAINER, attempt=1)
    waiting = asyncio.ensure_future(run.fetch(trainer, 1, wait_s=60))
    for _ in range(10):
        await asyncio.to_thread(lambda: None)
    assert await run.trainer.stop() == 0
    assert (await waiting)[0].kind is enums.BatchKind.STOP


async def test_old_artifacts_go_once_nobody_needs_them(start: Start) -> None:
    run = start(max_steps=20)
    rollout, trainer = await run.register(enums.Role.ROLLOUT), await run.register(enums.Role.TRAINER, attempt=1)
    for step in range(1, 6):
        await run.generate(rollout, serving=step - 1)
        await run.beat(rollout, 1 if step > 1 else 0)
        await run.fetch(trainer, step)
        await run.commit(trainer, step)
        await run.publish(trainer, step)
    await run.weights.prune()
    # Versions 3, 4, 5 are the newest three; 1 is what the rollout serves.
    assert await run.stored() == [1, 3, 4, 5]
    await run.beat(rollout, 5)
    await run.weights.prune()
    assert await run.stored() == [3, 4, 5]


@pytest.mark.covers("algorithms 10")
async def test_another_seed_or_job_on_the_same_directory_is_refused(start: Start) -> None:
    start()
    with pytest.raises(Exception, match=r"spec.seed = 7, but this job has spec.seed = 8"):
        start(seed=8)


async def test_a_second_coordinator_is_kept_out(start: Start, make_config: MakeConfig) -> None:
    start()
    with pytest.raises(Exception, match="another coordinator uses"):
        resume.open_state(make_config(), data_digest="", now=0.0)


@pytest.mark.covers("algorithms 11")
async def test_metrics_count_from_the_start_of_the_process_not_of_the_run(start: Start) -> None:
    run = start()
    rollout = await run.register(enums.Role.ROLLOUT)
    await run.housekeeper.refresh()
    await run.generate(rollout, serving=0, capacity=1)
    await run.housekeeper.refresh()
    assert _sample(run, "rljob_trajectories_total", outcome="accepted") == 2.0
    assert _sample(run, "rljob_queue_depth", queue="submitted") == 1.0
    run = start()
    await run.housekeeper.refresh()
    assert _sample(run, "rljob_trajectories_total", outcome="accepted") == 0.0


async def test_the_phases_of_consumed_groups_are_timed_from_the_queue_on(start: Start) -> None:
    run = start()
    rollout, trainer = await run.register(enums.Role.ROLLOUT), await run.register(enums.Role.TRAINER, attempt=1)
    await run.generate(rollout, serving=0)
    await run.fetch(trainer, step=1)
    counts = {
        phase: _sample(run, "rljob_group_seconds_count", phase=phase)
        for phase in ("queued", "generate", "verify", "packed")
    }
    assert counts == dict.fromkeys(counts, 2.0), "both groups of the step"


@pytest.mark.covers("workflows 9")
async def test_a_step_of_oats_actor_is_in_the_gauges_as_it_is_in_the_history(start: Start) -> None:
    run = start()
    rollout, trainer = await run.register(enums.Role.ROLLOUT), await run.register(enums.Role.TRAINER, attempt=1)
    await run.generate(rollout, serving=0)
    assert _sample(run, "rljob_actor_rewards") is None
    await run.fetch(trainer, step=1)
    told = {name: _sample(run, f"rljob_actor_{name}") for name in ("rewards", "num_data", "generate_avg_str_len")}
    assert told == {"rewards": 0.5, "num_data": 4.0, "generate_avg_str_len": None}, "rows here tell no characters"
    assert _sample(run, "rljob_actor_sampling_temperature") == run.config.sampling.temperature
    assert _sample(run, "rljob_actor_sampling_max_tokens") == run.config.sampling.max_tokens


PACKED_ROWS = {"computed": 2, "unique": 2, "rows": 4}


async def test_tokens_of_a_step_are_counted_once_it_is_trained(start: Start) -> None:
    """Two groups of two equal rows: as trees they hold the tokens of two rows, and all of those are computed."""
    run = start()
    rollout, trainer = await run.register(enums.Role.ROLLOUT), await run.register(enums.Role.TRAINER, attempt=1)
    await run.generate(rollout, serving=0)
    await run.fetch(trainer, step=1)

    await run.housekeeper.tick()
    counted = {kind: _sample(run, "rljob_packed_tokens_total", kind=kind) for kind in PACKED_ROWS}
    assert counted == dict.fromkeys(PACKED_ROWS, 0.0)
    await run.commit(trainer, step=1)
    await run.housekeeper.tick()
    packed = {kind: num_rows * len(makers.make_trajectory().tokens) for kind, num_rows in PACKED_ROWS.items()}
    assert {kind: _sample(run, "rljob_packed_tokens_total", kind=kind) for kind in packed} == packed
    (step,) = [event for event in run.events() if event["kind"] == "step"]
    assert step["packed_tokens"] == packed


def _sample(run: Coordinator, name: str, /, **labels: str) -> float | None:
    identity = {"rljob_namespace": "default", "rljob": "job"}
    return run.metrics.registry.get_sample_value(name, {**identity, **labels})


async def hand_in_as_too_long(run: Coordinator, token: str) -> None:
    await hand_in_as_failed(run, token, enums.DropReason.TOO_LONG, "70 tokens")


async def hand_in_as_failed(run: Coordinator, token: str, reason: str, detail: str) -> None:
    (lease,) = (await run.work.lease(token=token, capacity=1, serving_version=0, wait_s=0)).leases
    failures = [
        types.MemberFailure(sample_index=index, role="rollout", reason=reason, detail=detail, infra=False)
        for index in range(lease.group_size)
    ]
    group = makers.make_group(
        lease_id=lease.lease_id, group_id=lease.group_id, attempt=lease.attempt, rewards=(), failures=failures
    )
    await run.work.submit(token, group)


@pytest.mark.covers("graders 4.3")
async def test_a_run_of_which_no_prompt_can_be_used_ends_with_the_reason_and_not_before(start: Start) -> None:
    run = start(drop=True)
    rollout = await run.register(enums.Role.ROLLOUT)
    for left in range(20, 0, -1):
        assert run.core.order.num_prompts - await run.core.ledger.run(groups.num_unusable) == left
        await run.housekeeper.tick()
        await hand_in_as_too_long(run, rollout)
    with pytest.raises(errors.DataError, match="none of the 20 prompts of data.train can be used"):
        await run.housekeeper.tick()


@pytest.mark.covers("graders 4.3")
async def test_a_prompt_that_is_too_long_is_dropped_and_counted_whatever_becomes_of_invalid_ones(start: Start) -> None:
    run = start(drop=False)
    rollout = await run.register(enums.Role.ROLLOUT)
    await hand_in_as_too_long(run, rollout)
    await run.housekeeper.tick()
    assert (await run.core.ledger.run(lambda ledger: ledger.counters()))["dropped:too_long"] == 1


async def test_a_record_that_cannot_be_used_ends_the_run_by_name_until_it_is_started_again(start: Start) -> None:
    run = start()
    rollout = await run.register(enums.Role.ROLLOUT)
    await hand_in_as_failed(run, rollout, "RecordError", "the record has no 'answer'")
    status = await run.housekeeper.current()
    assert status.phase is enums.Phase.FAILED
    source = run.config.spec.data.train[0].name
    assert f"of source '{source}' cannot be used: the record has no 'answer'" in status.failure
    assert "onInvalidRecord: Drop" in status.failure
    again = start()
    status = await again.housekeeper.current()
    assert (status.phase, status.failure) == (enums.Phase.RUNNING, ""), "its record may have been mended"


class SlowBuild:
    """Is before the building of a batch: each begins, and ends when it is let continue."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[int] = []
        self.go_on = threading.Event()
        self._build = builder.build
        monkeypatch.setattr(builder, "build", self)

    def __call__(self, choice: steps.Choice, config: process_config.CoordinatorConfig) -> builder.Built:
        self.begun.append(choice.step)
        assert self.go_on.wait(60)
        return self._build(choice, config)


async def until(run: Coordinator, holds: Callable[[database.Ledger], bool]) -> None:
    """Return once the ledger says so; every change of it is looked at."""
    while True:
        mark = run.core.changes.mark
        if await run.core.ledger.run(holds):
            return
        while run.core.changes.mark == mark:
            await asyncio.sleep(0)


@pytest.mark.covers("algorithms 10")
async def test_a_batch_that_takes_longer_to_build_than_its_callers_wait_is_built_once(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, slow = start(), SlowBuild(monkeypatch)
    rollout, trainer = await run.register(enums.Role.ROLLOUT), await run.register(enums.Role.TRAINER, attempt=1)
    await run.generate(rollout, serving=0)
    for _ in range(3):
        # What a server does with a handler whose client is gone.
        call = asyncio.create_task(run.fetch(trainer, 1))
        while not slow.begun:
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    waiting = asyncio.create_task(run.fetch(trainer, 1))
    slow.go_on.set()
    header, parts = await waiting
    assert (header.kind, len(parts), slow.begun.count(1)) == (enums.BatchKind.BATCH, 1, 1)
    assert (await run.fetch(trainer, 1))[1] == parts


@pytest.mark.covers("algorithms 10")
async def test_the_next_batch_is_built_while_the_trainer_is_at_work_and_nobody_asks(start: Start) -> None:
    run = start()
    rollout, trainer = await run.register(enums.Role.ROLLOUT), await run.register(enums.Role.TRAINER, attempt=1)
    await run.generate(rollout, serving=0)
    await until(run, lambda ledger: groups.recorded(ledger) == 2)
    assert (await run.fetch(trainer, 2))[0].wait_reason == "step 1 to be committed"
    await run.commit(trainer, 1)
    header, parts = await run.fetch(trainer, 2)
    assert (header.kind, header.trainer_version, len(parts)) == (enums.BatchKind.BATCH, 1, 1)


async def test_a_batch_that_cannot_be_built_ends_the_run_with_the_reason_and_is_not_tried_for_ever(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start()
    rollout, trainer = await run.register(enums.Role.ROLLOUT), await run.register(enums.Role.TRAINER, attempt=1)
    begun: list[int] = []

    def broken(choice: steps.Choice, config: process_config.CoordinatorConfig) -> builder.Built:
        begun.append(choice.step)
        raise ZeroDivisionError("of an answer that nobody is to read in a log")

    with monkeypatch.context() as patched:
        patched.setattr(builder, "build", broken)
        await run.generate(rollout, serving=0)
        for _ in range(3):
            header, _ = await run.fetch(trainer, 1)
            assert (header.kind, header.wait_reason) == (enums.BatchKind.NOT_READY, run.why())
    assert begun == [1]
    status = await run.housekeeper.current()
    assert (status.phase, status.failure) == (enums.Phase.FAILED, run.why())
    assert status.failure.startswith("the batch of step 1 cannot be built: ZeroDivisionError at test_stories.py")
    assert "answer that nobody" not in status.failure


@pytest.mark.covers("workflows 11")
async def test_an_evaluation_takes_one_rollout_of_four_and_training_goes_on(start: Start) -> None:
    run = start(suites=True)
    fleet = [await run.register(enums.Role.ROLLOUT, number=number) for number in range(4)]
    trainer = await run.register(enums.Role.TRAINER, attempt=1)
    for token in fleet:
        await run.beat(token, 0)
    await run.housekeeper.tick()
    kinds = []
    held: list[types.GroupLease] = []
    for token in fleet:
        grant = await run.work.lease(token=token, capacity=3, serving_version=0, wait_s=0)
        kinds.append({lease.kind for lease in grant.leases})
        held += grant.leases if grant.leases[0].kind is enums.GroupKind.EVALUATION else []
        if grant.leases[0].kind is enums.GroupKind.TRAIN:
            for lease in grant.leases:
                made = makers.make_group(lease_id=lease.lease_id, group_id=lease.group_id, attempt=lease.attempt)
                assert (await run.work.submit(token, made)).outcome == "accepted"
        if len(kinds) == 3:
            break
    assert kinds == [{enums.GroupKind.EVALUATION}, {enums.GroupKind.TRAIN}, {enums.GroupKind.TRAIN}]
    ids = tuple(lease.lease_id for lease in held)

    async def told() -> list[int]:
        orders = [await run.beat(token, 0, ids if token == fleet[0] else ()) for token in fleet]
        return [order.load_version for order in orders]

    for step in (1, 2):
        await run.fetch(trainer, step)
        await run.commit(trainer, step)
        version = await run.publish(trainer, step)
        # An evaluation of step 2 waits behind the first one: two rollouts are taken, so that they do not pile up.
        assert await told() == [0, 1, 1, 1] if step == 1 else [0, 0, 2, 2]
    status = await run.housekeeper.current()
    assert status.evaluating == "step 0: 0/3"
    assert {pod.pod: pod.ready for pod in status.pods}["rollout-0"], "it serves what it is asked to"
    for token in fleet[2:]:
        await run.beat(token, version)
    assert (await run.housekeeper.current()).version_lag_steps == 0, "of those that train"
    for lease in held:
        made = makers.make_group(lease_id=lease.lease_id, group_id=lease.group_id, attempt=0, rewards=(1.0,))
        assert (await run.work.submit(fleet[0], made)).outcome == "recorded"
    await run.housekeeper.tick()
    await run.clock.advance(5)
    assert (await run.beat(fleet[0], 0)).load_version == 2


async def test_a_pod_whose_name_never_comes_again_is_forgotten(start: Start) -> None:
    run = start()
    gone = await run.register(enums.Role.ROLLOUT, number=7)
    here = await run.register(enums.Role.ROLLOUT)
    (lease,) = (await run.work.lease(token=gone, capacity=1, serving_version=0, wait_s=0)).leases
    await run.clock.advance(3000)
    await run.beat(here, 0)
    await run.clock.advance(1000)
    await run.housekeeper.tick()
    assert [pod.pod for pod in (await run.housekeeper.current()).pods] == ["rollout-0"]
    assert await run.core.ledger.run(lambda ledger: ledger.number("SELECT COUNT(*) AS n FROM sessions")) == 1
    with pytest.raises(errors.FencedError, match="register again"):
        await run.beat(gone, 0)
    again = await run.register(enums.Role.ROLLOUT, number=7)
    (offered,) = (await run.work.lease(token=again, capacity=1, serving_version=0, wait_s=0)).leases
    assert (offered.group_id, offered.attempt) == (lease.group_id, 1)


async def test_a_submitted_group_whose_tokens_are_lost_ends_the_run_instead_of_being_chosen_for_ever(
    start: Start,
) -> None:
    run = start()
    rollout, trainer = await run.register(enums.Role.ROLLOUT), await run.register(enums.Role.TRAINER, attempt=1)
    grant = await run.work.lease(token=rollout, capacity=2, serving_version=0, wait_s=0)
    made = [makers.make_group(lease_id=x.lease_id, group_id=x.group_id, attempt=x.attempt) for x in grant.leases]
    await run.work.submit(rollout, made[0])
    await run.core.ledger.run(lambda ledger: ledger.db.change("DELETE FROM payloads"))
    await run.work.submit(rollout, made[1])
    header, _ = await run.fetch(trainer, 1)
    assert (header.kind, header.wait_reason) == (enums.BatchKind.NOT_READY, run.why())
    assert "cannot be built: LedgerError" in run.why()


@pytest.mark.parametrize(("asked", "ends"), [("Condition", False), ("Fail", True)])
async def test_a_run_that_loses_what_it_had_is_named_and_ended_only_if_asked_to(
    start: Start, asked: str, ends: bool
) -> None:
    """The best steps had ten times the reward of those that follow."""
    run = start(on_divergence=asked)
    rollout, trainer = await run.register(enums.Role.ROLLOUT), await run.register(enums.Role.TRAINER, attempt=1)
    for step in range(1, 5):
        await run.generate(rollout, serving=step - 1)
        assert (await run.fetch(trainer, step))[0].kind is enums.BatchKind.BATCH
        await run.commit(trainer, step)
        await run.publish(trainer, step)
        await run.beat(rollout, step)
        if step == 1:
            before = best_steps.Best(mean=learning.Point(step=1, reward=5.0), lowest=0.0)
            await run.core.ledger.run(best_steps.keep, before)
    await run.housekeeper.refresh()
    told = await run.housekeeper.refresh()
    assert told.reason == "LearningDiverged"
    (concern,) = told.concerns
    assert concern.message.startswith("the mean reward is 0.500, and was 5.000 at step 1")
    assert (told.phase is enums.Phase.FAILED) is ends
    assert run.why().startswith("the run diverges: the mean reward is 0.500") is ends


async def test_the_best_steps_are_kept_until_a_rewind_undoes_them(start: Start) -> None:
    run = start()
    rollout, trainer = await run.register(enums.Role.ROLLOUT), await run.register(enums.Role.TRAINER, attempt=1)
    for step in range(1, 7):
        await run.generate(rollout, serving=step - 1)
        await run.fetch(trainer, step)
        await run.commit(trainer, step)
        await run.publish(trainer, step)
        await run.beat(rollout, step)
        await run.housekeeper.refresh()
    kept = await run.core.ledger.run(best_steps.read)
    assert kept is not None
    assert (kept.mean.step, kept.mean.reward, kept.lowest, kept.checkpoint) == (5, 0.5, 0.5, None)
    await run.register(enums.Role.TRAINER, boot_id="c", attempt=2, resume_step=0)
    assert await run.core.ledger.run(best_steps.read) is None
