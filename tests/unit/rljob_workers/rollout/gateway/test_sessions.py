"""Attempts that agents take: deadlines, withdrawal, and that an agent that died holds nothing."""

import asyncio

import pytest

from rljob_api import errors, types
from rljob_testing.clock import FakeClock
from rljob_workers.rollout.gateway import conversation, sessions

LIMITS = sessions.Limits(most=2, idle_s=60.0, session_s=300.0)


async def never(call: conversation.Call, follower: conversation.Follower | None) -> conversation.Answer:
    raise AssertionError("no call is made here")


ATTEMPT = sessions.Attempt(task='{"prompt": "hi"}', sampling=types.Sampling(), answer=never)


class Scene:
    """Sessions under a clock that stands still."""

    def __init__(self, limits: sessions.Limits = LIMITS) -> None:
        self.clock = FakeClock()
        self.sessions = sessions.Sessions(limits, self.clock)

    def offered(self) -> "asyncio.Task[object]":
        return asyncio.get_running_loop().create_task(self.sessions.run(ATTEMPT))

    async def taken(self) -> sessions.Session:
        session = await self.sessions.take(0.0)
        assert session is not None
        return session

    async def begun(self) -> "tuple[asyncio.Task[object], sessions.Session]":
        """Offer an attempt to an agent that takes it at once."""
        run = self.offered()
        await asyncio.sleep(0)
        return run, await self.taken()


async def test_an_attempt_is_taken_once_and_ends_with_the_rewards() -> None:
    scene = Scene()
    run, session = await scene.begun()
    assert await scene.sessions.take(0.0) is None
    assert scene.sessions.find(session.name) is session
    session.close(1.5)
    assert await run == 1.5
    assert scene.sessions.find(session.name) is None


async def test_an_agent_that_waits_gets_the_next_attempt() -> None:
    scene = Scene()
    waiting = asyncio.get_running_loop().create_task(scene.sessions.take(30.0))
    await asyncio.sleep(0)
    run = scene.offered()
    session = await waiting
    assert session is not None
    session.close(0.0)
    assert await run == 0.0


async def test_an_agent_waits_no_longer_than_it_said() -> None:
    scene = Scene()
    waiting = asyncio.get_running_loop().create_task(scene.sessions.take(30.0))
    await scene.clock.advance(30.0)
    assert await waiting is None


@pytest.mark.covers("workflows 7")
async def test_a_silent_agent_frees_its_attempt_at_the_deadline() -> None:
    scene = Scene()
    run, session = await scene.begun()
    await scene.clock.advance(59.0)
    assert not run.done()
    await scene.clock.advance(1.0)
    with pytest.raises(errors.EpisodeError, match="made no call for 60 s"):
        await run
    assert scene.sessions.find(session.name) is None


async def test_it_is_told_where_no_agent_comes(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    run = scene.offered()
    await scene.clock.advance(60.0)
    assert "no agent took an attempt for 60 s; 1 wait" in caplog.text
    session = await scene.taken()
    session.close(1.0)
    assert await run == 1.0


async def test_it_is_told_once_a_minute_however_many_attempts_wait(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    runs = [scene.offered() for _ in range(3)]
    await scene.clock.advance(60.0)
    assert [record.getMessage() for record in caplog.records] == ["no agent took an attempt for 60 s; 3 wait"]
    for run in runs:
        run.cancel()
    await asyncio.wait(runs)


async def test_each_call_begins_the_silence_anew_but_not_the_session() -> None:
    scene = Scene()
    run, session = await scene.begun()
    for _ in range(5):
        await scene.clock.advance(50.0)
        with session.call():
            pass
    assert not run.done()
    await scene.clock.advance(50.0)
    with pytest.raises(errors.EpisodeError, match="did not close its session within 300 s"):
        await run


async def test_a_call_under_way_is_no_silence() -> None:
    scene = Scene()
    run, session = await scene.begun()
    with session.call():
        await scene.clock.advance(200.0)
        assert not run.done()
    await scene.clock.advance(60.0)
    with pytest.raises(errors.EpisodeError, match="made no call"):
        await run


async def test_a_call_is_cancelled_with_its_session() -> None:
    scene = Scene()
    run, session = await scene.begun()

    async def call() -> None:
        with session.call():
            await asyncio.Event().wait()

    calling = asyncio.get_running_loop().create_task(call())
    await asyncio.sleep(0)
    session.abandon()
    with pytest.raises(errors.EpisodeError, match="gave the attempt up"):
        await run
    with pytest.raises(asyncio.CancelledError):
        await calling


async def test_an_attempt_whose_lease_is_cancelled_is_offered_to_no_one() -> None:
    scene = Scene()
    withdrawn, kept = scene.offered(), scene.offered()
    await asyncio.sleep(0)
    withdrawn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await withdrawn
    session = await scene.taken()
    assert await scene.sessions.take(0.0) is None
    session.close(1.0)
    assert await kept == 1.0


@pytest.mark.covers("workflows 7")
async def test_no_more_sessions_are_open_than_may_be() -> None:
    scene = Scene()
    runs = [scene.offered() for _ in range(3)]
    await asyncio.sleep(0)
    first = await scene.taken()
    assert not scene.sessions.is_full
    await scene.taken()
    assert scene.sessions.is_full
    first.close(0.0)
    await runs[0]
    assert not scene.sessions.is_full
    for run in runs[1:]:
        run.cancel()


async def test_an_agent_that_waits_has_its_place_already() -> None:
    scene = Scene()
    waiting = [asyncio.get_running_loop().create_task(scene.sessions.take(30.0)) for _ in range(2)]
    await asyncio.sleep(0)
    assert scene.sessions.is_full
    await scene.clock.advance(30.0)
    assert await asyncio.gather(*waiting) == [None, None]
    assert not scene.sessions.is_full


async def test_the_rewards_that_come_first_count() -> None:
    scene = Scene()
    run, session = await scene.begun()
    session.close(1.0)
    session.close(2.0)
    session.abandon()
    assert await run == 1.0


async def test_keys_are_in_no_text_of_a_session() -> None:
    session = sessions.Session(attempt=ATTEMPT)
    assert session.api_key not in repr(session)
