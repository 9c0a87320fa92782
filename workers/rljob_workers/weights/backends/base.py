"""What a weight transport is: the trainer's end, the rollout's end, and how both are found by `weightSync.transport`.

    trainer    upload (backend) -> Publish (coordinator)        rollout    Manifest (coordinator) -> pull (backend)

A version is registered with the coordinator and planned by it whatever carries its bytes; a backend moves bytes only.
It is one module here, `<transport>_store.py`, whose `BACKEND` makes both ends from the configs of the processes, and
its name in `WeightTransport` of rljob_api/manifest/trainer.py. Adding one: docs/contributing.md.
"""

import abc
import dataclasses
import importlib
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import grpc

from rljob_api import enums, errors, process_config, types
from rljob_api.wire import codec
from rljob_api.wire.v1 import weights_pb2, weights_pb2_grpc
from rljob_workers.rpc import channel
from rljob_workers.weights import shelf, transfers

T = TypeVar("T")


class Publisher(Protocol):
    """What the trainer needs to publish a version."""

    def upload(self, data: memoryview, encoding: enums.Encoding) -> types.Artifact:
        """Store `data` and return the artifact; storing the same bytes again is harmless."""

    def publish(self, version: types.WeightVersion, layout: types.Layout | None) -> types.VersionId:
        """Register a version whose artifacts are stored and return the head. Raises ConflictError for a taken id."""

    def release(self) -> None:
        """Read no more of what was uploaded: it is about to change. Returns at once."""


class Puller(Protocol):
    """What a receiver needs to get a version."""

    def plan(
        self,
        *,
        want: types.VersionId,
        have: int,
        with_layout: bool,
        damaged: Sequence[str] = (),
        only_stored: bool = False,
    ) -> types.VersionPlan:
        """Return what to fetch to reach `want` from `have`, and from where; damaged: ids of artifacts that were not
        what they are named by; only_stored: no image that only rollouts have.
        """

    def pull(self, artifact: types.Artifact, sources: Sequence[types.WeightSource], into: memoryview) -> None:
        """Fill `into` with the artifact's bytes, verified."""


class _Registry:
    """A connection to the coordinator's registry of versions. `session`: the token that it gave this process."""

    def __init__(self, *, control_address: str, tls: process_config.TlsConfig | None, timeout_s: float) -> None:
        self.session = ""
        self._address, self._timeout_s = control_address, timeout_s
        self._control = channel.sync_channel(control_address, tls)
        self._stub = weights_pb2_grpc.WeightsStub(self._control)

    def close(self) -> None:
        self._control.close()


class RegisteringPublisher(_Registry, abc.ABC):
    """A publisher that registers its versions with the coordinator; a backend adds where the bytes go. Blocking.

    broadcasts: where this process announces broadcasts, which rollouts are told with their plans; empty for none.
    """

    broadcasts = ""

    def __init__(self, *, control_address: str, tls: process_config.TlsConfig | None, timeout_s: float = 120.0) -> None:
        """`timeout_s`: of a call to the coordinator, which may commit behind others."""
        super().__init__(control_address=control_address, tls=tls, timeout_s=timeout_s)

    @abc.abstractmethod
    def upload(self, data: memoryview, encoding: enums.Encoding) -> types.Artifact:
        """Store `data` and return the artifact; storing the same bytes again is harmless."""

    def publish(self, version: types.WeightVersion, layout: types.Layout | None) -> types.VersionId:
        """Register the version; a repetition with the same state hash is accepted."""
        request = weights_pb2.PublishRequest(
            session=self.session,
            manifest=codec.to_message(version),
            layout=None if layout is None else codec.to_message(layout),
            broadcasts=self.broadcasts,
        )
        reply = translated(self._address, lambda: self._stub.Publish(request, timeout=self._timeout_s))
        if reply.outcome == "conflict":
            raise errors.ConflictError(f"version {version.version} was refused: {reply.detail}")
        if reply.outcome not in ("accepted", "repeated"):
            raise errors.WeightsError(f"version {version.version} was refused ({reply.outcome}): {reply.detail}")
        return types.VersionId(reply.head_version)

    def release(self) -> None:
        """Read no more of what was uploaded: it is about to change. Most backends are done with it already."""


class PlanningPuller(_Registry, abc.ABC):
    """A puller that asks the coordinator what to fetch; a backend adds how the bytes come. Blocking."""

    def __init__(self, *, control_address: str, tls: process_config.TlsConfig | None, timeout_s: float = 20.0) -> None:
        """`timeout_s`: of a call to the coordinator, which only reads."""
        super().__init__(control_address=control_address, tls=tls, timeout_s=timeout_s)
        # What this process holds for others, and what it fetched and served.
        self.shelf, self.transfers = shelf.Shelf(), transfers.Transfers()
        # Of the layout, once it is known: what is sent without a question is not larger.
        self.image_bytes = 0

    def plan(
        self,
        *,
        want: types.VersionId,
        have: int,
        with_layout: bool,
        damaged: Sequence[str] = (),
        only_stored: bool = False,
    ) -> types.VersionPlan:
        request = weights_pb2.ManifestRequest(
            session=self.session, want=want, have=have, layout=with_layout, damaged=damaged, stored=only_stored
        )
        reply = translated(self._address, lambda: self._stub.Manifest(request, timeout=self._timeout_s))
        return codec.from_message(types.VersionPlan, reply)

    @abc.abstractmethod
    def pull(self, artifact: types.Artifact, sources: Sequence[types.WeightSource], into: memoryview) -> None:
        """Fill `into` with the artifact's bytes, verified. Raises WeightsError or UnavailableError."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """Both ends of a transport, each made from the config of its process; `BACKEND` of its module."""

    publisher: Callable[[process_config.TrainerConfig], RegisteringPublisher]
    puller: Callable[[process_config.RolloutConfig], PlanningPuller]


def find(transport: str) -> Backend:
    """Return the backend of `weightSync.transport`, a name that the manifest allows; only its module is imported."""
    backend = importlib.import_module(f"{__package__}.{transport}_store").BACKEND
    assert isinstance(backend, Backend), f"{transport}_store.BACKEND is a Backend"
    return backend


def translated(address: str, call: Callable[[], T]) -> T:
    """Return what a call to the coordinator's process returns, its failure as one of our errors."""
    try:
        return call()
    except grpc.RpcError as error:
        raise channel.translate(error, f"coordinator {address}") from error
