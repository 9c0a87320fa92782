"""Attempts that agents outside this process take over the network: offered, taken, closed; or given up.

    arun_episode --offer--> [waiting] --take (gateway's key)--> session: own path, own key, deadline
         ^                     |  withdrawn: the lease was          | calls (session's key)
         |                     v  cancelled                         v
         '--- rewards <--- close | EpisodeError <--- abandon | no call for idle_s | open for session_s

A session is one attempt at one answer of a leased group. An attempt that ends without rewards is offered again by the
worker, to whichever agent asks next: an agent that died holds nothing for longer than its deadline.
"""

import asyncio
import contextlib
import dataclasses
import logging
import math
import secrets
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from rljob_api import errors, types
from rljob_workers.rollout.gateway import conversation
from rljob_workers.runtime import clock as clocks

logger = logging.getLogger(__name__)

TOLD_AFTER_S = 60.0
Answer = Callable[[conversation.Call, conversation.Follower | None], Awaitable[conversation.Answer]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What an agent is to do. task: the record, as JSON."""

    task: str
    sampling: types.Sampling
    answer: Answer


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """An attempt while calls may be made: `name` is in its path. taken: whether an agent has it. closed: the rewards,
    None to have the job give them, or why there are none. opened_at: monotonic seconds; silent_since: the same, None
    while a call is under way.
    """

    attempt: Attempt
    clock: clocks.Clock = dataclasses.field(default_factory=clocks.SystemClock)
    name: str = dataclasses.field(default_factory=lambda: secrets.token_hex(16))
    api_key: str = dataclasses.field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    taken: "asyncio.Future[None]" = dataclasses.field(default_factory=asyncio.Future)
    closed: "asyncio.Future[object]" = dataclasses.field(default_factory=asyncio.Future)
    opened_at: float = 0.0
    silent_since: float | None = None
    _calls: set["asyncio.Task[object]"] = dataclasses.field(default_factory=set)

    def open(self) -> None:
        """Begin to count the time."""
        self.opened_at = self.silent_since = self.clock.monotonic()
        self.taken.set_result(None)

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Serve a call of the session, in the task that asks for it; it is cancelled with the session."""
        own = asyncio.current_task()
        assert own is not None, "a call is served in a task"
        self._calls.add(own)
        self.silent_since = None
        try:
            yield
        finally:
            self._calls.discard(own)
            self.silent_since = None if self._calls else self.clock.monotonic()

    def cancel_calls(self) -> None:
        """Give up what no one waits for any more."""
        for call in self._calls:
            call.cancel()

    def close(self, rewards: object) -> None:
        """Take the rewards, None for the job's own; what comes first counts."""
        if not self.closed.done():
            self.closed.set_result(rewards)

    def abandon(self) -> None:
        """Give the attempt up."""
        if not self.closed.done():
            self.closed.set_exception(errors.EpisodeError("the agent gave the attempt up"))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """most: sessions open at once. idle_s: without a call. session_s: in all."""

    most: int
    idle_s: float
    session_s: float


def ending(limits: Limits, session: Session, now: float) -> tuple[float, str]:
    """Return in how many seconds a session is over if nothing more is heard, and why then."""
    silent_s = limits.idle_s if session.silent_since is None else session.silent_since + limits.idle_s - now
    left_s = session.opened_at + limits.session_s - now
    if left_s <= silent_s:
        return left_s, f"the agent did not close its session within {limits.session_s:g} s"
    return silent_s, f"the agent made no call for {limits.idle_s:g} s"


class Sessions:
    """The attempts that wait and the sessions that are open."""

    def __init__(self, limits: Limits, clock: clocks.Clock) -> None:
        self.limits, self._clock = limits, clock
        self._waiting: asyncio.Queue[Session] = asyncio.Queue()
        self._open: dict[str, Session] = {}
        self._num_asking = 0
        self._warned_at = -math.inf

    @property
    def is_full(self) -> bool:
        """Return whether as many sessions are open, or asked for, as may be."""
        return len(self._open) + self._num_asking >= self.limits.most

    def find(self, name: str) -> Session | None:
        """Return the open session of that name."""
        return self._open.get(name)

    async def run(self, attempt: Attempt) -> object:
        """Offer an attempt, and return the rewards that the agent closed its session with, None if it left them to us.

        Raises EpisodeError if it ended without: given up, silent, too long.
        """
        session = Session(attempt=attempt, clock=self._clock)
        self._waiting.put_nowait(session)
        try:
            if not await self._wait(session.taken, TOLD_AFTER_S):
                self._warn()
                await session.taken
            return await self._closed(session)
        finally:
            # One that is cancelled while it waits is passed over by `take`.
            session.taken.cancel()
            session.closed.cancel()
            self._open.pop(session.name, None)
            session.cancel_calls()

    async def take(self, wait_s: float) -> Session | None:
        """Open a session for the attempt that has waited longest; None if none comes within `wait_s` seconds."""
        waited = asyncio.ensure_future(self._clock.sleep(wait_s))
        self._num_asking += 1
        try:
            session = await self._next(waited)
            while session is not None and session.closed.done():
                session = await self._next(waited)
        finally:
            waited.cancel()
            self._num_asking -= 1
        if session is None:
            return None
        self._open[session.name] = session
        session.open()
        return session

    def _warn(self) -> None:
        """Say that attempts wait, once for all that have waited since the last time."""
        now = self._clock.monotonic()
        if now - self._warned_at >= TOLD_AFTER_S:
            self._warned_at = now
            logger.warning("no agent took an attempt for %g s; %d wait", TOLD_AFTER_S, self._waiting.qsize())

    async def _next(self, waited: "asyncio.Future[None]") -> Session | None:
        offered = asyncio.ensure_future(self._waiting.get())
        ends: set[asyncio.Future[Any]] = {offered, waited}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if offered.done():
                # It was handed to an agent that is gone.
                self._waiting.put_nowait(offered.result())
            raise
        finally:
            offered.cancel()
        return offered.result() if offered.done() and not offered.cancelled() else None

    async def _closed(self, session: Session) -> object:
        while not session.closed.done():
            left_s, why = ending(self.limits, session, self._clock.monotonic())
            if left_s <= 0:
                raise errors.EpisodeError(why)
            await self._wait(session.closed, left_s)
        return session.closed.result()

    async def _wait(self, future: "asyncio.Future[Any]", most_s: float) -> bool:
        """Wait for a future for so long, and return whether it is done."""
        waited = asyncio.ensure_future(self._clock.sleep(most_s))
        ends: set[asyncio.Future[Any]] = {future, waited}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waited.cancel()
        return future.done()
