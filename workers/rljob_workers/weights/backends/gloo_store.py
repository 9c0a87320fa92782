"""`transport: gloo`: as `grpc`, and beside it a broadcast from the trainer to the rollouts that follow it. Blocking.

    trainer    upload: store (gRPC) || broadcast (torch.distributed)      rollout    pull: broadcast, else store, peers

For machines on one network that they share with no one: bytes are not encrypted. The store has every artifact, so that
late rollouts, restarts and failures need nothing else; a version is registered once it is there. What leads to a
version, and that its bytes are right, is decided as with `grpc`. Where the trainer is, the coordinator hears with a
version and tells with a plan: so a rollout follows it from the first version that it takes.
"""

from collections.abc import Sequence

from rljob_api import enums, errors, process_config, types
from rljob_workers.weights import pieces
from rljob_workers.weights.backends import base, broadcast_inbox, broadcaster, grpc_store


class GlooPublisher(grpc_store.WeightPublisher):
    """Uploads artifacts and broadcasts them meanwhile."""

    def __init__(
        self,
        *,
        control_address: str,
        store_address: str,
        tls: process_config.TlsConfig | None,
        to_rollouts: broadcaster.Broadcaster,
        piece_bytes: int = enums.PIECE_BYTES,
    ) -> None:
        """to_rollouts: started and closed here. Raises UnavailableError if its port is taken."""
        super().__init__(control_address=control_address, store_address=store_address, tls=tls, piece_bytes=piece_bytes)
        self._to_rollouts = to_rollouts
        self._has_sent_changes = False
        to_rollouts.start()
        self.broadcasts = to_rollouts.address

    def store(self, data: memoryview, artifact: types.Artifact) -> None:
        # A whole image beside its changes is for those that come later: who is here needs the changes alone.
        if artifact.encoding is not enums.Encoding.WHOLE or not self._has_sent_changes:
            self._to_rollouts.send(artifact, data)
        self._has_sent_changes = artifact.encoding is enums.Encoding.DELTA
        super().store(data, artifact)

    def release(self) -> None:
        self._to_rollouts.release()

    def close(self) -> None:
        self._to_rollouts.close()
        super().close()


class GlooPuller(grpc_store.WeightPuller):
    """Takes what was broadcast, and everything else as `grpc` does."""

    def __init__(
        self,
        *,
        control_address: str,
        tls: process_config.TlsConfig | None,
        member: str,
        peer_name: str = "",
        trainer_name: str = "",
    ) -> None:
        """member: the name of this process among rollouts. trainer_name: that certificates of trainers have."""
        super().__init__(control_address=control_address, tls=tls, peer_name=peer_name)
        self._member, self._trainer_name = member, trainer_name
        self.inbox: broadcast_inbox.BroadcastInbox | None = None
        self._is_closed = False

    def pull(self, artifact: types.Artifact, sources: Sequence[types.WeightSource], into: memoryview) -> None:
        """Fill `into`. Raises what `grpc` does, and UnavailableError if this process ends meanwhile."""
        others = [source for source in sources if source.kind is not enums.SourceKind.TRAINER]
        for trainer in set(sources).difference(others):
            self._follow(trainer.address)
        if len(into) < artifact.num_bytes or self.inbox is None or not self.inbox.take(artifact, into):
            if self._is_closed:
                raise errors.UnavailableError("this process ends, and pulls no more")
            super().pull(artifact, others, into)
            return
        self.transfers.fetched(enums.SourceKind.TRAINER, artifact.num_bytes)
        if artifact.pieces:
            holding = self.shelf.hold(artifact, into, is_kept=artifact.encoding is enums.Encoding.DELTA)
            # They were verified as a whole.
            self.shelf.add(holding, pieces.full(pieces.count(artifact)), is_checked=False)

    def _follow(self, address: str) -> None:
        """Follow the trainer at `address`, another attempt of which has another one."""
        if self.inbox is not None and self.inbox.address == address:
            return
        if self.inbox is not None:
            self.inbox.stop()
        self.inbox = broadcast_inbox.BroadcastInbox(
            address=address,
            member=self._member,
            tls=self._tls,
            most_bytes=self.image_bytes,
            server_name=self._trainer_name,
        )
        self.inbox.start()

    def close(self) -> None:
        self._is_closed = True
        if self.inbox is not None:
            self.inbox.close()
        super().close()


def _publisher(config: process_config.TrainerConfig) -> GlooPublisher:
    assert config.broadcasts is not None, "a trainer that broadcasts says where"
    return GlooPublisher(
        control_address=config.coordinator_address,
        store_address=config.store_address,
        tls=config.tls,
        to_rollouts=broadcaster.Broadcaster(host=config.broadcasts.host, port=config.broadcasts.port, config=config),
    )


def _puller(config: process_config.RolloutConfig) -> GlooPuller:
    return GlooPuller(
        control_address=config.coordinator_address,
        tls=config.tls,
        member=config.pod,
        peer_name=grpc_store.peer_name(config),
        trainer_name="" if config.tls is None else config.trainer_name,
    )


BACKEND = base.Backend(publisher=_publisher, puller=_puller)
