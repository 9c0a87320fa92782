"""The real program on loopback: killed with SIGKILL it loses nothing that it acknowledged and leaves no one behind."""

import asyncio
import dataclasses
import os
import pathlib
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeVar

import pytest
from safetensors.torch import save_file

from rljob_api import enums, errors, process_config, types
from rljob_api.manifest.trainer import WeightSyncSpec
from rljob_testing import coordinator_program, local_weights, makers, publishing_trainer, sections
from rljob_workers.rollout.sync import staging
from rljob_workers.rpc import status, train, work
from rljob_workers.runtime import clock, retry
from rljob_workers.trainer.state import anchoring
from rljob_workers.trainer.state import publish as version_publishing
from rljob_workers.weights import image, initial
from rljob_workers.weights.backends import base, file_store, grpc_store

T = TypeVar("T")
_LIMIT_S = 100.0


@pytest.fixture
def program(
    make_config: Callable[..., process_config.CoordinatorConfig], tmp_path: pathlib.Path
) -> Iterator[coordinator_program.Program]:
    found = coordinator_program.Program(coordinator_program.on_free_ports(make_config()), tmp_path)
    yield found
    if found.process.poll() is None:
        found.close()


@pytest.fixture
async def rollout(program: coordinator_program.Program) -> AsyncIterator[work.WorkClient]:
    client = work.WorkClient(address=program.address, tls=None)
    await patiently(lambda: client.register(pod="rollout-0", boot_id="b", initial_state_hash="h"))
    yield client
    await client.close()


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Call until the coordinator answers."""
    backoff = retry.Backoff(first_s=0.05, most_s=0.2)
    return await retry.retry_async(call, clock=clock.SystemClock(), deadline_s=_LIMIT_S, backoff=backoff)


def is_gone(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii").split(") ")[1][0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + _LIMIT_S
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        os.sched_yield()


async def test_a_kill_loses_nothing_that_was_acknowledged_and_leaves_no_process(
    program: coordinator_program.Program, rollout: work.WorkClient
) -> None:
    grant = await rollout.lease(capacity=4, serving_version=types.VersionId(0), wait_s=1.0)
    groups = [makers.make_group(lease_id=x.lease_id, group_id=x.group_id, attempt=x.attempt) for x in grant.leases]
    answers = [await rollout.submit(group) for group in groups[:3]]
    assert [answer.outcome for answer in answers] == ["accepted"] * 3
    wait_until(lambda: bool(program.children()))
    (store,) = program.children()
    program.kill()
    await asyncio.to_thread(wait_until, lambda: is_gone(store))
    with pytest.raises(errors.UnavailableError):
        await rollout.submit(groups[0])
    program.start()
    again = await patiently(lambda: rollout.submit(groups[0]))
    assert again == types.SubmitReply(outcome=enums.TrajectoryOutcome.ACCEPTED, duplicate=True)
    # The session and the open lease survived: the fourth group needs no new lease.
    assert (await rollout.submit(groups[3])).outcome == "accepted"
    found = await asyncio.to_thread(status_of, program.address)
    assert found.queue_depth["submitted"] + found.queue_depth["packed"] == 4
    assert program.close() == 0


def status_of(address: str) -> types.RunStatus:
    client = status.StatusClient(address=address, tls=None)
    try:
        return client.status()
    finally:
        client.close()


async def test_a_config_that_changes_under_the_running_program_is_taken_over_and_acknowledged(
    program: coordinator_program.Program, rollout: work.WorkClient
) -> None:
    before = await asyncio.to_thread(status_of, program.address)
    program.edit(max_steps=before.max_steps + 5)
    await asyncio.to_thread(wait_until, lambda: status_of(program.address).config_generation == 2)
    assert (await asyncio.to_thread(status_of, program.address)).max_steps == before.max_steps + 5
    assert program.process.poll() is None


async def test_a_store_that_dies_is_started_again(
    program: coordinator_program.Program, rollout: work.WorkClient
) -> None:
    wait_until(lambda: bool(program.children()))
    publisher = grpc_store.WeightPublisher(control_address=program.address, store_address=program.store, tls=None)

    def upload() -> types.Artifact:
        return retry.retry_sync(
            lambda: publisher.upload(memoryview(b"image"), enums.Encoding.WHOLE), deadline_s=_LIMIT_S,
            backoff=retry.Backoff(first_s=0.05, most_s=0.2),
        )  # fmt: skip

    first = await asyncio.to_thread(upload)
    (store,) = program.children()
    os.kill(store, signal.SIGKILL)
    await asyncio.to_thread(wait_until, lambda: is_gone(store))
    assert await asyncio.to_thread(upload) == first
    publisher.close()


async def test_a_rollout_hears_of_every_new_head_until_the_coordinator_goes_and_once_it_is_back(
    program: coordinator_program.Program, rollout: work.WorkClient, version_maker: Callable[..., types.WeightVersion]
) -> None:
    await beat(rollout)
    announcements = rollout.watch()
    publisher = grpc_store.WeightPublisher(control_address=program.address, store_address=program.store, tls=None)
    await asyncio.to_thread(publish, program, version_maker, publisher)
    assert (await asyncio.wait_for(anext(announcements), _LIMIT_S)).load_version == 1
    await asyncio.to_thread(program.kill)
    with pytest.raises(errors.UnavailableError):
        await anext(announcements)
    program.start()
    # One that was not heard of by this process hears what it missed from its heartbeat.
    assert await patiently(lambda: beat(rollout)) == 1
    announcements = rollout.watch()
    assert (await asyncio.wait_for(anext(announcements), _LIMIT_S)).load_version == 1
    assert await asyncio.to_thread(program.close) == 0
    with pytest.raises(errors.UnavailableError):
        await anext(announcements)


async def beat(rollout: work.WorkClient) -> int:
    reply = await rollout.heartbeat(
        lease_ids=(), serving_version=types.VersionId(0), receiver_state=enums.ReceiverState.SERVING,
        load=types.RolloutLoad(), syncs=(), draining=False,
    )  # fmt: skip
    return reply.load_version


async def test_announcements_to_a_process_that_was_replaced_end_with_its_session(
    program: coordinator_program.Program, rollout: work.WorkClient
) -> None:
    ended = asyncio.ensure_future(anext(rollout.watch()))
    other = work.WorkClient(address=program.address, tls=None)
    await other.register(pod="rollout-0", boot_id="another", initial_state_hash="h")
    with pytest.raises(errors.FencedError):
        await asyncio.wait_for(ended, _LIMIT_S)
    await other.close()


async def test_a_version_in_a_shared_folder_is_registered_planned_and_read(
    program: coordinator_program.Program, version_maker: Callable[..., types.WeightVersion]
) -> None:
    client = work.WorkClient(address=program.address, tls=None)
    session = await patiently(lambda: client.register(pod="rollout-0", boot_id="b", initial_state_hash="h"))
    assert isinstance(session, types.Session)
    folder = pathlib.Path(program.config.state_dir) / "weights"
    publisher = file_store.FilePublisher(folder=folder, control_address=program.address, tls=None)
    await asyncio.to_thread(publish, program, version_maker, publisher)
    puller = file_store.FilePuller(folder=folder, control_address=program.address, tls=None)
    puller.session = session.token
    plan = await asyncio.to_thread(lambda: puller.plan(want=types.VersionId(1), have=0, with_layout=True))
    (artifact,) = plan.chain[-1].artifacts
    data = bytearray(artifact.num_bytes)
    puller.pull(artifact, plan.sources, memoryview(data))
    assert data == b"image"
    puller.close()
    await client.close()


def publish(
    program: coordinator_program.Program,
    version_maker: Callable[..., types.WeightVersion],
    publisher: base.RegisteringPublisher,
) -> None:
    trainer = train.BatchClient(address=program.address, tls=None)
    session = trainer.register(
        pod="trainer-0", boot_id="t", attempt=1, rank=0, resume_step=0, initial_state_hash="h"
    )  # fmt: skip
    publisher.session = session.token
    artifact = retry.retry_sync(
        lambda: publisher.upload(memoryview(b"image"), enums.Encoding.WHOLE), deadline_s=_LIMIT_S,
        backoff=retry.Backoff(first_s=0.05, most_s=0.2),
    )  # fmt: skip
    proposal = dataclasses.replace(version_maker(1, 0), artifacts=(artifact,))
    layout = types.Layout(layout_id=proposal.layout_id, tensors=(), image_bytes=artifact.num_bytes)
    publisher.publish(proposal, layout)
    publisher.close()
    trainer.close()


@pytest.mark.covers("weights 6", "weights 14")
async def test_versions_travel_as_changes_from_a_publisher_to_a_stager(
    program: coordinator_program.Program, tmp_path: pathlib.Path
) -> None:
    layout = image.make_layout([("model.embed_tokens.weight", "bfloat16", (64, 64))])
    trainer = publishing_trainer.PublishingTrainer(layout)
    folder = tmp_path / "model"
    folder.mkdir()
    save_file(trainer.model, folder / "model.safetensors")
    state_hash = local_weights.initial_version(folder, "job", "bfloat16")[1].state_hash
    client = work.WorkClient(address=program.address, tls=None)
    session = await patiently(lambda: client.register(pod="rollout-0", boot_id="b", initial_state_hash=state_hash))
    puller = grpc_store.WeightPuller(control_address=program.address, tls=None)
    puller.session = session.token
    stager = staging.Stager(
        first=initial.of_model_files(folder, "bfloat16"), job="job", puller=puller, clock=clock.SystemClock()
    )
    batches = train.BatchClient(address=program.address, tls=None)
    publisher = grpc_store.WeightPublisher(control_address=program.address, store_address=program.store, tls=None)
    publisher.session = batches.register(
        pod="trainer-0", boot_id="t", attempt=1, rank=0, resume_step=0, initial_state_hash=state_hash
    ).token
    exporter = trainer.exporter()
    exporter.export()
    versions = version_publishing.VersionPublisher(
        exporter=exporter, transport=publisher, job="job", attempt=1, head=types.VersionId(0), description="test",
        anchors=anchoring.Anchors(sections.section(WeightSyncSpec, anchor_every=3)), clock=clock.SystemClock(),
        reconnect_timeout_s=_LIMIT_S,
    )  # fmt: skip
    versions.compare_with_image()

    def story() -> None:
        for number in range(1, 6):
            trainer.change(50)
            versions.publish(0)
            versions.flush()
            staged = stager.stage(types.VersionId(number))
            assert 0 < staged.num_bytes == staged.delta_bytes < layout.image_bytes / 10
            assert stager.buffer.view == exporter.image
        # What rollouts serve one another needs the digests of pieces, all the way from the publisher.
        plan = puller.plan(want=types.VersionId(5), have=types.NO_VERSION, with_layout=False)
        assert all(artifact.pieces for version in plan.chain for artifact in version.artifacts)
        stager.buffer.mark_dirty()
        stager.stage(types.VersionId(5))
        assert stager.buffer.view == exporter.image

    await asyncio.to_thread(story)
    versions.close()
    publisher.close()
    puller.close()
    batches.close()
    await client.close()


async def test_errors_keep_their_class_over_the_wire(
    program: coordinator_program.Program, rollout: work.WorkClient
) -> None:
    with pytest.raises(errors.FencedError, match="register again"):
        await asyncio.to_thread(fetch_without_session, program.address)


def fetch_without_session(address: str) -> None:
    client = train.BatchClient(address=address, tls=None)
    try:
        client.fetch(step=1, rank=0, world_size=1, wait_s=0.0, stop=False)
    finally:
        client.close()
