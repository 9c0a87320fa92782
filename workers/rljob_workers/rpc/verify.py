"""The rollout's side of `Verify`: least-loaded over its peers, infra failures retried elsewhere. asyncio."""

import dataclasses
import logging
from collections.abc import Sequence
from typing import Protocol

import grpc
import grpc.aio

from rljob_api import enums, errors, process_config, types
from rljob_api.wire import codec
from rljob_api.wire.v1 import verify_pb2, verify_pb2_grpc
from rljob_workers.rpc import channel
from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import retry

logger = logging.getLogger(__name__)


class Grading(Protocol):
    """What an episode needs from the verifiers."""

    async def verify(self, items: Sequence[types.VerifyItem]) -> list[types.Verdict]:
        """Return one verdict per item, in order. Raises RecordError for a record that no grader can judge."""


@dataclasses.dataclass(slots=True)
class _Peer:
    """One verifier: its stub and how many items are out there."""

    address: str
    channel: grpc.aio.Channel
    stub: verify_pb2_grpc.VerifierStub
    outstanding: int = 0


class GradingClient:
    """The gRPC client. An item that met an infrastructure failure goes to another verifier, up to `max_attempts`."""

    def __init__(
        self,
        *,
        addresses: Sequence[str],
        tls: process_config.TlsConfig | None,
        timeout_s: float,
        max_attempts: int,
        clock: clocks.Clock,
        role: enums.Role = enums.Role.VERIFIER,
    ) -> None:
        """`role` is whose service it is: a verifier's or a judge's. Raises ValueError without an address."""
        if not addresses:
            raise ValueError("need at least one verifier address")
        self._peers = [self._peer(address, tls) for address in addresses]
        self._timeout_s, self._max_attempts, self._clock = timeout_s, max_attempts, clock
        self._role = role

    @staticmethod
    def _peer(address: str, tls: process_config.TlsConfig | None) -> _Peer:
        opened = channel.aio_channel(address, tls)
        return _Peer(address, opened, verify_pb2_grpc.VerifierStub(opened))

    async def verify(self, items: Sequence[types.VerifyItem]) -> list[types.Verdict]:
        """Return one verdict per item, in order; infra_failure only after every attempt met one."""
        verdicts: dict[int, types.Verdict] = {}
        avoid: _Peer | None = None
        backoff = retry.Backoff(first_s=0.2, most_s=5.0)
        for attempt in range(1, self._max_attempts + 1):
            open_items = [
                (index, dataclasses.replace(item, attempt=attempt))
                for index, item in enumerate(items)
                if index not in verdicts or verdicts[index].reason is enums.VerdictReason.INFRA_FAILURE
            ]
            if not open_items:
                break
            if attempt > 1:
                await self._clock.sleep(backoff.next_delay_s())
            avoid = await self._once(open_items, verdicts, avoid)
        return [verdicts[index] for index in range(len(items))]

    async def _once(
        self, open_items: list[tuple[int, types.VerifyItem]], verdicts: dict[int, types.Verdict], avoid: _Peer | None
    ) -> _Peer:
        peer = self._choose(avoid)
        peer.outstanding += len(open_items)
        try:
            request = verify_pb2.VerifyRequest(items=[codec.to_message(item) for _, item in open_items])
            reply = await peer.stub.Verify(request, timeout=self._timeout_s)
            answers = [codec.from_message(types.Verdict, message) for message in reply.verdicts]
            if len(answers) != len(open_items):
                raise errors.WireError(f"{peer.address} gave {len(answers)} verdicts for {len(open_items)} items")
        except grpc.aio.AioRpcError as error:
            failure = channel.translate(error, f"{self._role} {peer.address}")
            if failure.fault is errors.Fault.DATA and not isinstance(failure, errors.FencedError):
                raise failure from error
            logger.warning("%s call failed: %s", self._role, failure, extra={"error_class": failure.name})
            answers = [_infra(item, self._blamed(str(failure))) for _, item in open_items]
        finally:
            peer.outstanding -= len(open_items)
        verdicts.update({index: answer for (index, _), answer in zip(open_items, answers, strict=True)})
        return peer

    def _blamed(self, why: str) -> str:
        return f"{enums.JUDGE_UNAVAILABLE}: {why}" if self._role is enums.Role.JUDGE else why

    def _choose(self, avoid: _Peer | None) -> _Peer:
        others = [peer for peer in self._peers if peer is not avoid] or self._peers
        return min(others, key=lambda peer: peer.outstanding)

    async def close(self) -> None:
        for peer in self._peers:
            await peer.channel.close()


def _infra(item: types.VerifyItem, detail: str) -> types.Verdict:
    return types.Verdict(
        reward=None,
        reason=enums.VerdictReason.INFRA_FAILURE,
        outcome=enums.VerifyOutcome.INFRA_ERROR,
        detail=detail[:512],
        attempt=item.attempt,
    )
