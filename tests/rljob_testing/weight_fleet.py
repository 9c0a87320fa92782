"""A store, a coordinator's tracker and rollouts that serve one another, in this process, over gRPC on loopback."""

import asyncio
import pathlib
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import grpc.aio

from rljob_api import enums, errors, types
from rljob_api.wire import codec
from rljob_api.wire.v1 import weights_pb2_grpc
from rljob_workers.coordinator.weights import store as weight_store
from rljob_workers.coordinator.weights import tracker
from rljob_workers.rpc import channel
from rljob_workers.weights import pieces, transfers
from rljob_workers.weights.backends import broadcaster, gloo_store, grpc_store, peer_server

T = TypeVar("T")

_LIMIT_S = 100.0
LOOPBACK = "127.0.0.1"


def until(holds: Callable[[], object]) -> None:
    """Wait until something holds; it is looked at often."""
    end = time.monotonic() + _LIMIT_S
    while not holds():
        assert time.monotonic() < end, f"did not happen within {_LIMIT_S:.0f} s"
        time.sleep(0.01)


class _Coordinator(weights_pb2_grpc.WeightsServicer):
    """Answers `Pieces` as the registry does, without sessions: a receiver's session is its name."""

    def __init__(self, found: tracker.Tracker, now: Callable[[], float]) -> None:
        self._tracker, self._now = found, now
        self.num_pieces: dict[str, int] = {}

    async def Pieces(self, request: Any, context: Any) -> Any:
        num_pieces = self.num_pieces[request.artifact_id]
        return codec.to_message(
            self._tracker.ask(
                request.session,
                artifact_id=request.artifact_id,
                num_pieces=num_pieces,
                have=pieces.from_wire(request.have, num_pieces),
                failed=tuple(request.failed),
                now=self._now(),
            )
        )


class Receiver:
    """A rollout's weights: what it pulls, and the port on which it serves that."""

    def __init__(self, fleet: "Fleet", name: str) -> None:
        self.name, self._fleet = name, fleet
        self.puller = grpc_store.WeightPuller(control_address=fleet.control, tls=None)
        self.puller.session = name
        self.shelf = self.puller.shelf
        self.shelf.most_bytes = 1 << 30
        servicer = peer_server.PeerServicer(self.shelf, self.puller.transfers)
        self.address = fleet.serve(servicer.handler(), name)

    @property
    def counts(self) -> transfers.Transfers:
        return self.puller.transfers

    def beat(self) -> None:
        """Say as a heartbeat does what is served here."""
        offer = types.WeightOffer(address=self.address, artifact_ids=self.shelf.whole())
        self._fleet.run(self._fleet.offer(self.name, offer))

    def pull(self, artifact: types.Artifact) -> bytearray:
        """Return the artifact's bytes. Raises what the pull raises, also because this receiver was killed."""
        into = bytearray(artifact.num_bytes)
        source = types.WeightSource(address=self._fleet.store, kind=enums.SourceKind.STORE)
        self.puller.pull(artifact, [source], memoryview(into))
        return into

    def has(self, artifact: types.Artifact) -> int:
        """Return how many pieces of an artifact are verified here."""
        try:
            with self.shelf.stream(artifact.artifact_id) as holding:
                return holding.have.bit_count()
        except errors.MovedError:
            return 0

    def kill(self) -> None:
        """Break every connection to it at once, then those from it."""
        self._fleet.stop(self.name)
        self.puller.close()


class Fleet:
    """The servers, on an event loop of their own. Close it with `close`."""

    def __init__(
        self, folder: pathlib.Path, *, least_again_s: float = 0.01, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Start them. now: the coordinator's clock, in seconds; by one that stands still no rollout is ever late."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fleet")
        self._thread.start()
        self._servers: dict[str, grpc.aio.Server] = {}
        self._artifacts = weight_store.ArtifactStore(folder)
        self.store = self.serve(weight_store.StoreServicer(self._artifacts).handler(), "store")
        self._tracker = tracker.Tracker(store_address=self.store, least_again_s=least_again_s)
        self._coordinator, self._now = _Coordinator(self._tracker, now), now
        self.control = self.serve(
            lambda server: weights_pb2_grpc.add_WeightsServicer_to_server(self._coordinator, server), "control"
        )

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_LIMIT_S)

    def serve(
        self, handler: "grpc.GenericRpcHandler[bytes, bytes] | Callable[[grpc.aio.Server], None]", name: str
    ) -> str:
        """Start a server and return its address."""

        async def start() -> str:
            server = self._servers[name] = channel.aio_server(None)
            if callable(handler):
                handler(server)
            else:
                server.add_generic_rpc_handlers((handler,))
            port = channel.bind(server, f"{LOOPBACK}:0", None)
            await server.start()
            return f"{LOOPBACK}:{port}"

        return self.run(start())

    def stop(self, name: str) -> None:
        """End a server and every call to it at once."""
        self.run(self._servers.pop(name).stop(None))

    def publish(self, data: memoryview, *, piece_bytes: int) -> types.Artifact:
        """Put bytes into the store; return the artifact."""
        artifact = pieces.describe(data, enums.Encoding.WHOLE, piece_bytes=piece_bytes)
        upload = weight_store.Upload(self._artifacts)
        upload.add(0, data)
        upload.commit(artifact.artifact_id)
        upload.close()
        self._coordinator.num_pieces[artifact.artifact_id] = pieces.count(artifact)
        return artifact

    async def offer(self, name: str, offer: types.WeightOffer) -> None:
        self._tracker.offers(name, offer, now=self._now())

    def close(self) -> None:
        for name in list(self._servers):
            self.stop(name)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LIMIT_S)
        self._loop.close()


def follower(fleet: Fleet, trainer: broadcaster.Broadcaster, name: str, *, most_bytes: int) -> gloo_store.GlooPuller:
    """Return the weights of a rollout that takes broadcasts of the trainer, once it is in the group."""
    num_joined = trainer.num_joined
    puller = gloo_store.GlooPuller(control_address=fleet.control, tls=None, member=name)
    puller.image_bytes = most_bytes
    # A plan names the trainer; what it is asked for here is nothing.
    nothing = pieces.describe(memoryview(b""), enums.Encoding.DELTA)
    told = types.WeightSource(address=trainer.address, kind=enums.SourceKind.TRAINER)
    store = types.WeightSource(address=fleet.store, kind=enums.SourceKind.STORE)
    puller.pull(nothing, [store, told], memoryview(bytearray()))
    until(lambda: trainer.num_joined == num_joined + 1)
    return puller
