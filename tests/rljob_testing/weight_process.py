"""A rollout or a trainer as far as its weights go, as a process of its own: it is told on its standard input and
answers in lines of JSON.

    rollout    stage VERSION                  fetch and verify, by the receiver's own code, and serve it to others
               beat                           send a heartbeat now: the coordinator knows what is served here
               digest                         what the image holds: its version, null while it is none, and SHA-256
               transfers                      the bytes that were fetched since the start, by kind of source
    trainer    publish TENSOR COUNT SEED      the next version: so many weights of a tensor have other values
               supply                         send again what the coordinator has lost, if it says so

Options: `python -m rljob_testing.weight_process rollout|trainer --help`. No engine loads what a rollout stages.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import pathlib
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence

from rljob_api import enums, errors, process_config, types
from rljob_testing import sections
from rljob_workers.rollout.sync import staging
from rljob_workers.rpc import work
from rljob_workers.runtime import clock as clocks
from rljob_workers.weights import initial
from rljob_workers.weights.backends import grpc_store, peer_server

_BEAT_S = 0.5
JOB = "job"


def sha256(data: memoryview, layout: types.Layout) -> str:
    """Return the digest of all tensors by name, in no way that the weights' own code has a part in."""
    digest = hashlib.sha256()
    for tensor in sorted(layout.tensors, key=lambda tensor: tensor.name):
        digest.update(tensor.name.encode() + data[tensor.offset : tensor.offset + tensor.length])
    return digest.hexdigest()


async def rollout(options: argparse.Namespace) -> None:
    """Register, beat, serve and stage until the input ends."""
    puller = _puller(options)
    stager = await asyncio.to_thread(
        lambda: staging.Stager(
            first=initial.of_model_files(options.model, options.dtype),
            job=JOB,
            puller=puller,
            clock=clocks.SystemClock(),
            shelf=puller.shelf,
        )
    )
    puller.shelf.most_bytes = puller.image_bytes = stager.layout.image_bytes
    peers = process_config.PeerConfig(bind_host=options.host, host=options.host, port=options.port)
    config = sections.make_config(process_config.RolloutConfig, options.model, peers=peers)
    client = work.WorkClient(address=options.coordinator, tls=None)
    session = await client.register(
        pod=options.pod or options.host, boot_id=uuid.uuid4().hex, initial_state_hash=stager.initial.state_hash
    )
    puller.session = session.token
    async with peer_server.PeerServer(config, puller.shelf, puller.transfers) as server:

        async def beat() -> None:
            await client.heartbeat(
                lease_ids=(),
                serving_version=stager.buffer.clean or types.VersionId(0),
                receiver_state=enums.ReceiverState.SERVING,
                load=types.RolloutLoad(),
                syncs=(),
                draining=False,
                offer=types.WeightOffer(address=f"{options.host}:{server.port}", artifact_ids=puller.shelf.whole()),
            )

        beats = asyncio.create_task(_repeat(beat))
        say({"ready": True})
        while words := (await asyncio.to_thread(sys.stdin.readline)).split():
            if words[0] == "stage":
                say(await asyncio.to_thread(_stage, stager, types.VersionId(int(words[1]))))
            elif words[0] == "beat":
                await beat()
                say({"beat": True})
            elif words[0] == "transfers":
                counts = puller.transfers
                say({"fetched": counts.fetched_bytes, "failures": counts.failures})
            else:
                say({"version": stager.buffer.clean, "sha256": sha256(stager.buffer.view, stager.layout)})
        beats.cancel()
    puller.close()
    await client.close()


def _puller(options: argparse.Namespace) -> grpc_store.WeightPuller:
    if options.transport == "grpc":
        return grpc_store.WeightPuller(control_address=options.coordinator, tls=None)
    # It brings torch.
    from rljob_workers.weights.backends import gloo_store

    return gloo_store.GlooPuller(control_address=options.coordinator, tls=None, member=options.pod)


def _stage(stager: staging.Stager, version: types.VersionId) -> dict[str, object]:
    began = time.monotonic()
    try:
        stager.stage(version)
    except (errors.WeightsError, errors.WireError) as error:
        return {"failed": f"{error.name}: {error}"}
    return {"seconds": time.monotonic() - began}


async def _repeat(beat: Callable[[], Awaitable[None]]) -> None:
    while True:
        with contextlib.suppress(errors.UnavailableError):
            await beat()
        await asyncio.sleep(_BEAT_S)


def say(answer: dict[str, object]) -> None:
    print(json.dumps(answer), flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=__doc__)
    roles = parser.add_subparsers(dest="role", required=True)
    for role in (enums.Role.ROLLOUT, enums.Role.TRAINER):
        options = roles.add_parser(str(role))
        options.add_argument("--coordinator", required=True)
        options.add_argument("--model", type=pathlib.Path, required=True)
        options.add_argument("--dtype", default="bfloat16")
        options.add_argument("--transport", default="grpc", choices=("grpc", "gloo"))
        if role is enums.Role.ROLLOUT:
            options.add_argument("--pod", default="", help="its name; without, that of the host")
            options.add_argument("--host", required=True)
            options.add_argument("--port", type=int, default=0)
        else:
            options.add_argument("--store", required=True)
            options.add_argument("--piece-bytes", type=int, required=True)
            options.add_argument("--attempt", type=int, default=1)
            options.add_argument("--anchor-every", type=int, default=10)
            options.add_argument("--checkpoint", type=pathlib.Path, help="read at the start, written after a version")
    chosen = parser.parse_args(arguments)
    with contextlib.suppress(KeyboardInterrupt):
        if chosen.role == enums.Role.ROLLOUT:
            asyncio.run(rollout(chosen))
        else:
            # It brings torch, which no rollout needs here.
            from rljob_testing import weight_trainer

            weight_trainer.Trainer(chosen).run()


if __name__ == "__main__":
    main()
