"""Who is listened to, and how a stream that is dead is distinguished from a run that is quiet."""

import asyncio
import dataclasses
import functools
import random

import pytest

from rljob_api import enums, types
from rljob_operator.coordinators import (
    FIRST_WITHIN_S,
    INTERVAL_S,
    MOST_OPENING,
    MOST_RETRYING,
    QUIET_S,
    Streams,
    opened,
)
from rljob_operator.reports import SILENT_S, Reports, Target
from rljob_testing.clock import FakeClock
from rljob_testing.operator_stage import said_status, until

RUN = types.RunStatus(job="job", phase=enums.Phase.RUNNING, step=1, last_progress_at=0.0)
TARGET = Target(key="team/run", uid="uid", address="coordinator")


class FakeStream:
    """A stream on a clock that the test moves: says what `scene.says` holds, at once and every two intervals."""

    def __init__(self, scene: "Scene", target: Target) -> None:
        self._scene, self._target, self._is_first = scene, target, True
        scene.opened.append(target.uid)
        scene.open.add(self)

    @property
    def expired(self) -> bool:
        return self._scene.expired

    async def read(self, *, within_s: float) -> types.RunStatus | None:
        scene = self._scene
        pause_s = 0.0 if self._is_first else 2 * INTERVAL_S
        # A coordinator that hangs answers no one, and its connection stands.
        await scene.clock.sleep(within_s if scene.hangs else pause_s)
        if scene.hangs:
            raise TimeoutError
        self._is_first = False
        return None if scene.is_broken else scene.says

    async def close(self) -> None:
        self._scene.open.discard(self)


class Scene:
    """Streams to coordinators that say what a test wants."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.says: types.RunStatus = RUN
        self.hangs = self.is_broken = self.expired = False
        self.opened: list[str] = []
        self.open = set[FakeStream]()
        self.enqueued: list[str] = []
        self.heard: list[bool] = []
        self.reports = Reports(enqueue=self.enqueued.append, now=self.clock.now, monotonic=self.clock.monotonic)
        self.streams = Streams(
            self.reports,
            functools.partial(FakeStream, self),
            now=self.clock.now,
            rng=random.Random(0),
            on_report=self.heard.append,
            sleep=self.clock.sleep,
        )


def _targets(number: int) -> list[Target]:
    return [Target(key=f"team/{each}", uid=str(each), address="a") for each in range(number)]


async def test_one_stream_is_opened_for_a_job_however_often_it_is_wanted() -> None:
    scene = Scene()
    for _ in range(10):
        scene.streams.keep([TARGET])
        await scene.clock.advance(10.0)
    assert scene.opened == ["uid"]
    assert scene.streams.num_open == 1
    await scene.streams.close()
    assert scene.open == set()
    assert scene.streams.num_open == 0


async def test_quiet_run_is_heard_all_the_same_and_is_not_silent() -> None:
    scene = Scene()
    scene.streams.keep([TARGET])
    await scene.clock.advance(600.0)
    assert scene.reports.silent_since("uid") is None
    assert scene.reports.age_s() <= 2 * INTERVAL_S
    assert set(scene.heard) == {True}
    await scene.streams.close()


async def test_stream_that_hangs_is_opened_again_and_its_coordinator_silent_since_its_last_word() -> None:
    scene = Scene()
    scene.streams.keep([TARGET])
    await scene.clock.advance(1.0)
    last_word_at, scene.hangs = scene.clock.now() - 1.0, True
    # The read that was under way still gets its answer.
    await scene.clock.advance(2 * INTERVAL_S)
    last_word_at += 2 * INTERVAL_S
    await scene.clock.advance(QUIET_S + 1.0)
    assert len(scene.opened) > 1
    assert scene.reports.silent_since("uid") is None, "one stream that broke proves nothing"
    await scene.clock.advance(4 * FIRST_WITHIN_S)
    assert scene.reports.silent_since("uid") == last_word_at
    scene.hangs = False
    await scene.clock.advance(2 * FIRST_WITHIN_S)
    assert scene.reports.silent_since("uid") is None
    await scene.streams.close()


async def test_stream_that_broke_is_opened_again_within_a_second() -> None:
    scene = Scene()
    scene.streams.keep([TARGET])
    await scene.clock.advance(1.0)
    scene.is_broken = True
    await scene.clock.advance(2 * INTERVAL_S)
    scene.is_broken = False
    await scene.clock.advance(1.0)
    assert scene.streams.num_open == 1
    assert scene.enqueued == ["team/run"], "nothing flips"
    await scene.streams.close()


@pytest.mark.parametrize("number", [10, 1000])
async def test_reports_are_as_fresh_of_many_jobs_as_of_few(number: int) -> None:
    scene = Scene()
    scene.streams.keep(_targets(number))
    await scene.clock.advance(5 * INTERVAL_S)
    assert scene.streams.num_open == number
    assert scene.reports.age_s() <= 2 * INTERVAL_S
    await scene.streams.close()


async def test_streams_that_open_are_bounded_and_those_that_fail_hold_up_no_others() -> None:
    scene = Scene()
    scene.hangs = True
    failing = _targets(100)
    scene.streams.keep(failing)
    await scene.clock.advance(0.0)
    assert len(scene.open) == MOST_OPENING
    await scene.clock.advance(8 * FIRST_WITHIN_S)
    assert len(scene.open) <= MOST_RETRYING
    assert set(scene.opened) == {target.uid for target in failing}
    scene.streams.keep([*failing, TARGET])
    await scene.clock.advance(0.0)
    assert scene.opened[-1] == "uid"
    await scene.streams.close()


async def test_job_that_is_wanted_no_more_costs_nothing() -> None:
    scene = Scene()
    scene.streams.keep([TARGET])
    await scene.clock.advance(1.0)
    scene.streams.keep([])
    await scene.clock.advance(600.0)
    assert (scene.open, scene.opened) == (set(), ["uid"])
    assert scene.reports.report_of("uid") is None


async def test_coordinator_that_cannot_be_reached_for_want_of_a_certificate_is_silent() -> None:
    scene, mute = Scene(), Target(key="team/run", uid="uid", address="")
    scene.streams.keep([mute])
    await scene.clock.advance(SILENT_S + 10.0)
    assert scene.opened == []
    assert scene.reports.silent_since("uid") == 1_000_000.0
    scene.streams.keep([TARGET])
    await scene.clock.advance(1.0)
    assert scene.reports.silent_since("uid") is None
    await scene.streams.close()


async def test_stream_whose_certificate_ends_is_opened_again_without_a_failure() -> None:
    scene = Scene()
    scene.streams.keep([TARGET])
    await scene.clock.advance(1.0)
    scene.expired = True
    await scene.clock.advance(2 * INTERVAL_S)
    scene.expired = False
    await scene.clock.advance(1.0)
    assert len(scene.opened) > 1
    assert False not in scene.heard
    await scene.streams.close()


async def test_error_that_nobody_expected_is_not_lost() -> None:
    scene = Scene()

    def broken(target: Target) -> FakeStream:
        raise RuntimeError(f"no way to {target.address}")

    streams = Streams(scene.reports, broken, now=scene.clock.now, rng=random.Random(0), sleep=scene.clock.sleep)
    streams.keep([TARGET])
    await scene.clock.advance(0.0)
    with pytest.raises(RuntimeError, match="no way to coordinator"):
        streams.keep([TARGET])


async def test_status_arrives_over_a_real_connection_as_soon_as_it_changes() -> None:
    scene = Scene()
    async with said_status() as (said, address):
        said.says(enums.Phase.RUNNING, step=1)
        connect = functools.partial(opened, credentials_of=lambda _: None, now=scene.clock.now)
        streams = Streams(scene.reports, connect, now=scene.clock.now, rng=random.Random(0))
        target = dataclasses.replace(TARGET, address=address)
        streams.keep([target])
        await until(lambda: scene.reports.report_of("uid"))
        said.says(enums.Phase.RUNNING, step=2)

        def step() -> int:
            report = scene.reports.report_of("uid")
            return 0 if report is None else report.run.step

        await until(lambda: step() == 2)
        assert (said.num_opened, said.num_open) == (1, 1)
        streams.keep([])
        await until(lambda: said.num_open == 0)
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("listen")]
