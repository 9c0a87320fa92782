"""The trainer's end of broadcasts: who takes part, which group they are in, and one artifact after another.

    rollouts    Follow (stream) ----> members --worker thread--> group of all in good standing    made again on change
    send()      an artifact --------------------------> announce -> chunks (process_group.py) -> reports of all

Nothing here is ever waited for: the store has each artifact as well, and whoever gets none from here takes it there.
A group carries one broadcast after the other, each reported by all; anything else ends the group, and the next one is
made without those at fault: who said nothing, or else who said that it failed. They are left out for a while. So a
member that dies or hangs costs the others one artifact from here, and the trainer nothing.
"""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio

from rljob_api import errors, process_config, types
from rljob_api.wire import codec
from rljob_api.wire.v1 import weights_pb2, weights_pb2_grpc
from rljob_workers.rpc import channel
from rljob_workers.weights import deadlines
from rljob_workers.weights.backends import process_group

logger = logging.getLogger(__name__)

# gloo connects each with each: 128 have 8,128 connections.
MOST_MEMBERS = 128
_LEFT_OUT_S = 30.0
_LOOK_S = 0.5
_MOST_NAME = 256
_MOST_FAILURE = 500


class _Member:
    """A rollout that follows. left_out_until: when it may take part again."""

    def __init__(self, name: str) -> None:
        self.name, self.left_out_until = name, 0.0
        self.announced: asyncio.Queue[weights_pb2.Broadcast] = asyncio.Queue()


class _Sending:
    """An artifact on its way out. Its bytes are read until `withdraw` returns, and not after."""

    def __init__(self, artifact: types.Artifact, data: memoryview) -> None:
        self.artifact, self.data = artifact, data
        self.is_withdrawn, self._lock = False, threading.Lock()

    def read(self, offset: int, into: memoryview) -> None:
        with self._lock:
            if self.is_withdrawn:
                raise errors.UnavailableError("the artifact's memory was needed before the broadcast was over")
            into[:] = self.data[offset : offset + len(into)]

    def withdraw(self) -> None:
        with self._lock:
            self.is_withdrawn = True


class _Team:
    """The members of a group and what they have reported of its latest announcement."""

    def __init__(self, number: int, members: tuple[_Member, ...]) -> None:
        self.number, self.members = number, members
        # Of this group alone: what members leave there goes with it.
        self.rendezvous: process_group.Rendezvous | None = None
        self.group: process_group.Group | None = None
        self.artifact_id = ""
        self.reports: dict[str, str] = {}


class Broadcaster(weights_pb2_grpc.BroadcastsServicer):
    """`start`, then `send` and `release` from one thread, and `close`."""

    def __init__(
        self,
        *,
        host: str,
        port: int = 0,
        config: process_config.ProcessConfig | None = None,
        timeout_s: float = process_group.TIMEOUT_S,
        left_out_s: float = _LEFT_OUT_S,
        now: Callable[[], float] = time.monotonic,
        group: type[process_group.Group] = process_group.Group,
    ) -> None:
        """host: the address of this process for the members. port: of announcements, 0 for any. timeout_s: of each
        chunk. left_out_s: how long a member that failed takes no part. Raises UnavailableError if the port is taken.
        """
        self._host, self._port, self._config = host, port, config
        self._timeout_s, self._left_out_s, self._now, self._group = timeout_s, left_out_s, now, group
        self._changed = threading.Condition()
        self._members: dict[str, _Member] = {}
        self._team = _Team(0, ())
        self._sending: _Sending | None = None
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        self._serving = threading.Thread(target=self._loop.run_forever, name="broadcast-calls", daemon=True)
        self._working = threading.Thread(target=self._work, name="broadcasts", daemon=True)
        self.address = ""

    def start(self) -> None:
        """Serve: `address` says where. Raises UnavailableError if the port is taken."""
        self._serving.start()
        self._server, bound = asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result()
        self.address = process_config.host_and_port(self._host, bound)
        self._working.start()

    async def _serve(self) -> tuple[grpc.aio.Server, int]:
        server = channel.aio_server(self._config)
        weights_pb2_grpc.add_BroadcastsServicer_to_server(self, server)
        tls = None if self._config is None else self._config.tls
        bound = channel.bind(server, process_config.host_and_port(self._host, self._port), tls)
        await server.start()
        return server, bound

    def close(self) -> None:
        """End what is under way within the deadline of a chunk, and let every member go. Once more does nothing."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            if self._sending is not None:
                self._sending.withdraw()
            self._changed.notify_all()
        self._working.join(2 * self._timeout_s)
        try:
            asyncio.run_coroutine_threadsafe(self._server.stop(None), self._loop).result(self._timeout_s)
        except TimeoutError:
            logger.warning("streams of announcements did not end in %.0f s", self._timeout_s)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._serving.join(self._timeout_s)
        if not self._serving.is_alive():
            self._loop.close()

    @property
    def num_joined(self) -> int:
        """Return how many rollouts are in the present group."""
        with self._changed:
            return 0 if self._team.group is None else len(self._team.members)

    @property
    def is_sending(self) -> bool:
        """Return whether a broadcast is under way, or about to be."""
        return self._sending is not None

    def send(self, artifact: types.Artifact, data: memoryview) -> None:
        """Broadcast an artifact, and return at once. While the one before is under way this one is not sent."""
        with self._changed:
            if self._sending is None and self._members:
                self._sending = _Sending(artifact, data)
                self._changed.notify_all()

    def release(self) -> None:
        """Read no more of memory that may change: a broadcast of it ends here unless it was read to its end."""
        with self._changed:
            sending = self._sending
        if sending is not None and not sending.data.readonly:
            sending.withdraw()

    # Calls of members, on the event loop

    async def Follow(
        self,
        request: weights_pb2.FollowRequest,
        context: Any,  # noqa: ARG002  # gRPC's signature
    ) -> AsyncIterator[weights_pb2.Broadcast]:
        """Take part for as long as the stream is open. Raises BusyError if there are too many, WireError."""
        if not 0 < len(request.member) <= _MOST_NAME:
            raise errors.WireError(f"a member's name has 1 to {_MOST_NAME} characters")
        member = _Member(request.member)
        with self._changed:
            if len(self._members) >= MOST_MEMBERS and member.name not in self._members:
                raise errors.BusyError(f"{MOST_MEMBERS} rollouts take part in broadcasts already")
            # Of a stream that ended without a word the successor is here first.
            before = self._members.get(member.name)
            member.left_out_until = 0.0 if before is None else before.left_out_until
            self._members[member.name] = member
            self._changed.notify_all()
        try:
            while True:
                yield await member.announced.get()
        finally:
            with self._changed:
                if self._members.get(member.name) is member:
                    del self._members[member.name]
                    self._changed.notify_all()

    async def Report(
        self,
        request: weights_pb2.BroadcastReport,
        context: Any,  # noqa: ARG002  # gRPC's signature
    ) -> weights_pb2.BroadcastReply:
        """Note what a member says of the latest announcement; of an older one it is of no interest any more."""
        with self._changed:
            team = self._team
            if (request.group, request.artifact_id) == (team.number, team.artifact_id) and any(
                member.name == request.member for member in team.members
            ):
                team.reports[request.member] = request.failure[:_MOST_FAILURE]
                self._changed.notify_all()
        return weights_pb2.BroadcastReply()

    # The worker thread

    def _work(self) -> None:
        while self._next():
            sending = None
            try:
                self._bring_together()
                with self._changed:
                    sending, team = self._sending, self._team
                if sending is not None and team.group is not None and not sending.is_withdrawn:
                    self._broadcast(team, team.group, sending)
            except errors.RLJobError as error:
                logger.warning("a broadcast broke off: %s", error, extra={"error_class": error.name})
                self._disband(is_ours=sending is not None and sending.is_withdrawn)
            finally:
                with self._changed:
                    if self._sending is sending:
                        self._sending = None
        self._end_group()

    def _next(self) -> bool:
        """Wait until there is something to do, and return True; False at the end."""
        with self._changed:
            while not self._is_closed and self._sending is None and self._present() == self._team.members:
                self._changed.wait(_LOOK_S)
            return not self._is_closed

    def _present(self) -> tuple[_Member, ...]:
        now = self._now()
        return tuple(member for member in self._members.values() if member.left_out_until <= now)

    def _bring_together(self) -> None:
        """Make the group that those who are here need, if it is not there. Raises UnavailableError."""
        with self._changed:
            members = self._present()
            if members == self._team.members:
                return
        self._end_group()
        with self._changed:
            self._team = team = _Team(self._team.number + 1, members)
        if members:
            size = len(members) + 1
            team.rendezvous = process_group.Rendezvous(self._host)
            self._announce(team, None)
            group = self._group(
                team.rendezvous.address, number=team.number, rank=0, size=size, timeout_s=self._timeout_s
            )
            self._await_reports(team, self._timeout_s)
            with self._changed:
                team.group = group
                self._changed.notify_all()

    def _broadcast(self, team: _Team, group: process_group.Group, sending: _Sending) -> None:
        """Raises UnavailableError unless all members report that they have the artifact."""
        artifact = sending.artifact
        with self._changed:
            team.artifact_id, team.reports = artifact.artifact_id, {}
        self._announce(team, artifact)
        group.send(artifact.num_bytes, sending.read)
        # Members hash it first.
        self._await_reports(team, self._timeout_s + artifact.num_bytes / deadlines.DISK_BYTES_PER_S)

    def _announce(self, team: _Team, artifact: types.Artifact | None) -> None:
        assert team.rendezvous is not None, "made before the group"
        for rank, member in enumerate(team.members, start=1):
            message = weights_pb2.Broadcast(
                group=team.number,
                rank=rank,
                size=len(team.members) + 1,
                rendezvous=team.rendezvous.address,
                artifact=None if artifact is None else codec.to_message(artifact),
            )
            self._loop.call_soon_threadsafe(member.announced.put_nowait, message)

    def _await_reports(self, team: _Team, timeout_s: float) -> None:
        """Return once all have reported. Raises UnavailableError if one failed, left, or said nothing in time."""
        self._wait_for_reports(team, timeout_s)
        if len(team.reports) < len(team.members):
            raise errors.UnavailableError(f"{len(team.members) - len(team.reports)} members did not report")
        for name, failure in team.reports.items():
            if failure:
                raise errors.UnavailableError(f"{name} reported: {failure}")

    def _wait_for_reports(self, team: _Team, timeout_s: float) -> None:
        """Wait until every member has reported or is gone, at most for `timeout_s`."""
        end = self._now() + timeout_s
        with self._changed:
            while not self._is_closed and self._silent(team) and (left_s := end - self._now()) > 0:
                self._changed.wait(min(_LOOK_S, left_s))

    def _silent(self, team: _Team) -> list[_Member]:
        return [
            member
            for member in team.members
            if member.name not in team.reports and self._members.get(member.name) is member
        ]

    def _disband(self, *, is_ours: bool) -> None:
        """End the group and leave out for a while who is at fault, as far as that can be told.

        is_ours: it was ended from here, and what members say of that is no fault of theirs.
        """
        self._end_group()
        team = self._team
        # Each operation of a member ends by itself in this time, and is reported.
        self._wait_for_reports(team, 2 * self._timeout_s)
        with self._changed:
            has_lost_one = any(self._members.get(member.name) is not member for member in team.members)
            at_fault = self._silent(team)
            if not (at_fault or has_lost_one or is_ours):
                at_fault = [member for member in team.members if team.reports.get(member.name)]
            for member in at_fault:
                member.left_out_until = self._now() + self._left_out_s
                logger.warning("left %s out of broadcasts for %.0f s", member.name, self._left_out_s)
            # Whoever is here is no longer together.
            self._team = _Team(team.number, ())

    def _end_group(self) -> None:
        with self._changed:
            group, self._team.group = self._team.group, None
        if group is not None:
            group.close()
