"""A rollout or a trainer as far as its weights go, as a process of its own: it is told on its standard input and
answers in lines of JSON.

    python -m rljob_testing.weight_process rollout --coordinator ADDRESS --model FOLDER --host HOST --port PORT
        stage VERSION    fetch and verify, by the receiver's own code, and serve it to others from then on
    python -m rljob_testing.weight_process trainer --coordinator ADDRESS --store ADDRESS --model FOLDER --piece-bytes N
        publish          the next version: other weights, whole
"""

import argparse
import asyncio
import contextlib
import json
import pathlib
import sys
import time

import numpy

from rljob_api import enums, process_config, types
from rljob_testing import sections
from rljob_workers.rollout.sync import staging
from rljob_workers.rpc import train, work
from rljob_workers.runtime import clock as clocks
from rljob_workers.weights import image, initial
from rljob_workers.weights.backends import grpc_store, peer_server

_DTYPE, _BEAT_S = "bfloat16", 0.5


async def rollout(arguments: argparse.Namespace) -> None:
    """Register, beat, serve and stage until the input ends."""
    puller = grpc_store.WeightPuller(control_address=arguments.coordinator, tls=None)
    stager = await asyncio.to_thread(
        lambda: staging.Stager(
            first=initial.of_model_files(arguments.model, _DTYPE),
            job="job",
            puller=puller,
            clock=clocks.SystemClock(),
            shelf=puller.shelf,
        )
    )
    puller.shelf.most_bytes = stager.layout.image_bytes
    peers = process_config.PeerConfig(bind_host=arguments.host, host=arguments.host, port=arguments.port)
    config = sections.make_config(process_config.RolloutConfig, arguments.model, peers=peers)
    client = work.WorkClient(address=arguments.coordinator, tls=None)
    session = await client.register(
        pod=arguments.host, boot_id=arguments.host, initial_state_hash=stager.initial.state_hash
    )
    puller.session = session.token
    async with peer_server.PeerServer(config, puller.shelf, puller.transfers):
        beats = asyncio.create_task(_beat(client, puller, peers.address))
        await _say({"ready": True})
        while line := await asyncio.to_thread(sys.stdin.readline):
            version = types.VersionId(int(line.split()[1]))
            began = time.monotonic()
            await asyncio.to_thread(stager.stage, version)
            seconds = time.monotonic() - began
            fetched = {str(kind): num_bytes for kind, num_bytes in puller.transfers.fetched_bytes.items()}
            failures = {str(reason): count for reason, count in puller.transfers.failures.items()}
            await _say({"seconds": seconds, "fetched": fetched, "failures": failures})
        beats.cancel()
    puller.close()
    await client.close()


async def _beat(client: work.WorkClient, puller: grpc_store.WeightPuller, address: str) -> None:
    while True:
        await client.heartbeat(
            lease_ids=(),
            serving_version=types.VersionId(0),
            receiver_state=enums.ReceiverState.SERVING,
            load=types.RolloutLoad(),
            syncs=(),
            draining=False,
            offer=types.WeightOffer(address=address, artifact_ids=puller.shelf.whole()),
        )
        await asyncio.sleep(_BEAT_S)


async def _say(answer: dict[str, object]) -> None:
    print(json.dumps(answer), flush=True)


def trainer(arguments: argparse.Namespace) -> None:
    """Publish until the input ends."""
    layout, initial, data = image.initial_version(arguments.model, "job", _DTYPE)
    batches = train.BatchClient(address=arguments.coordinator, tls=None)
    publisher = grpc_store.WeightPublisher(
        control_address=arguments.coordinator,
        store_address=arguments.store,
        tls=None,
        piece_bytes=arguments.piece_bytes,
    )
    publisher.session = batches.register(
        pod="trainer-0", boot_id="t", attempt=1, rank=0, resume_step=0, initial_state_hash=initial.state_hash
    ).token
    print(json.dumps({"ready": True}), flush=True)
    for number, _ in enumerate(sys.stdin, start=1):
        numbers = numpy.random.default_rng(number).integers(0, 255, layout.image_bytes, dtype=numpy.uint8)
        data[:] = numbers.tobytes()
        digests = image.digests(memoryview(data), layout)
        version = types.WeightVersion(
            job="job",
            version=types.VersionId(number),
            step=0,
            attempt=1,
            parent=number - 1,
            created_at=time.time(),
            layout_id=layout.layout_id,
            digests=digests,
            state_hash=image.state_hash(layout, digests),
            artifacts=(publisher.upload(memoryview(data), enums.Encoding.WHOLE),),
            exporter="test",
        )
        publisher.publish(version, layout)
        print(json.dumps({"published": number}), flush=True)
    publisher.close()
    batches.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    roles = parser.add_subparsers(dest="role", required=True)
    for role in (enums.Role.ROLLOUT, enums.Role.TRAINER):
        options = roles.add_parser(str(role))
        options.add_argument("--coordinator", required=True)
        options.add_argument("--model", type=pathlib.Path, required=True)
        if role is enums.Role.ROLLOUT:
            options.add_argument("--host", required=True)
            options.add_argument("--port", type=int, required=True)
        else:
            options.add_argument("--store", required=True)
            options.add_argument("--piece-bytes", type=int, required=True)
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        if arguments.role == enums.Role.ROLLOUT:
            asyncio.run(rollout(arguments))
        else:
            trainer(arguments)


if __name__ == "__main__":
    main()
