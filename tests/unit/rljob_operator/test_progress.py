import asyncio
import dataclasses
import random

import pytest

from rljob_api import enums, types
from rljob_operator.clock import TokenBucket
from rljob_operator.coordinators import MOST_SILENT_AT_ONCE, Channels, Poller, Target, poll_interval_s
from rljob_testing.clock import FakeClock

RUN = types.RunStatus(job="job", phase=enums.Phase.RUNNING, step=1, last_progress_at=0.0)
TARGET = Target(key="team/run", uid="uid", address="coordinator")


class Scene:
    """A poller whose coordinators say what a test wants. A fake of the wire."""

    def __init__(self, said: types.RunStatus | None = RUN) -> None:
        self.said, self.clock = said, FakeClock()
        self.asked: list[str] = []
        self.enqueued: list[str] = []
        self.at_once, self.most_at_once = 0, 0
        self.poller = Poller(
            ask=self._ask,
            enqueue=self.enqueued.append,
            now=self.clock.now,
            monotonic=self.clock.monotonic,
            rng=random.Random(0),
        )

    async def _ask(self, target: Target) -> types.RunStatus | None:
        self.asked.append(target.uid)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        return self.said

    async def poll(self, *targets: Target, after_s: float = 0.0) -> int:
        self.clock.tick(after_s)
        return await self.poller.poll(targets or (TARGET,))


@pytest.mark.parametrize(("num_jobs", "seconds"), [(1, 5.0), (200, 5.0), (400, 10.0), (1000, 25.0)])
def test_each_job_is_asked_every_five_seconds_and_no_more_than_forty_a_second(num_jobs: int, seconds: float) -> None:
    assert poll_interval_s(num_jobs) == seconds


async def test_job_is_not_asked_again_before_its_time() -> None:
    scene = Scene()
    assert [await scene.poll(), await scene.poll(after_s=4.0), await scene.poll(after_s=2.0)] == [1, 0, 1]


async def test_at_most_thirty_two_are_asked_at_once() -> None:
    scene = Scene()
    assert (
        await scene.poll(*(Target(key=f"team/{number}", uid=str(number), address="a") for number in range(100))) == 100
    )
    assert scene.most_at_once == 32


async def test_coordinators_that_do_not_answer_hold_up_no_others() -> None:
    scene, waits = Scene(said=None), asyncio.Event()
    silent = [Target(key=f"team/{number}", uid=str(number), address="gone") for number in range(100)]
    await scene.poll(*silent)
    usual = scene.poller._ask

    async def ask(target: Target) -> types.RunStatus | None:
        if target.address == "gone":
            scene.asked.append(target.uid)
            await waits.wait()
            return None
        return await usual(target)

    scene.poller._ask, scene.said, scene.asked = ask, RUN, []
    scene.clock.tick(10.0)
    first = asyncio.create_task(scene.poller.poll([*silent, TARGET]))
    while scene.poller.report_of("uid") is None:
        await asyncio.sleep(0)
    assert len(scene.asked) == MOST_SILENT_AT_ONCE + 1
    scene.clock.tick(10.0)
    assert await scene.poller.poll([*silent, TARGET]) == 1, "the next round does not wait, nor ask anybody twice"
    waits.set()
    await first


async def test_of_more_coordinators_than_channels_as_many_keep_theirs_as_may_be_open() -> None:
    asked: list[str] = []

    def credentials(uid: str) -> None:
        asked.append(uid)

    channels = Channels(credentials, now=lambda: 0.0, most=2)
    targets = [Target(key=f"team/{name}", uid=name, address=f"{name}.invalid:1") for name in "abc"]
    for target in (*targets, *targets):
        await channels._channel(target)
    assert asked == ["a", "b", "c", "c"], "whoever asks in turns would never find the one that was used last"
    await channels.keep_only(targets[1:])
    for target in targets[1:]:
        await channels._channel(target)
    assert asked == ["a", "b", "c", "c", "c"]
    await channels._channel(targets[2])
    assert asked[-1] == "c"
    assert len(asked) == 5, "the place of one that is gone is free"
    await channels.close()


async def test_job_that_follows_another_of_its_name_is_not_asked_with_what_the_other_was_shown() -> None:
    asked: list[str] = []

    def credentials(uid: str) -> None:
        asked.append(uid)

    channels = Channels(credentials, now=lambda: 0.0)
    for uid in ("gone", "fresh", "fresh"):
        await channels._channel(Target(key="team/run", uid=uid, address="run.invalid:1"))
    assert asked == ["gone", "fresh"]
    await channels.close()


async def test_answer_that_shows_nothing_new_wakes_nobody() -> None:
    scene = Scene()
    await scene.poll()
    scene.said = dataclasses.replace(RUN, last_progress_at=99.0, tokens_per_s=5.0)
    await scene.poll(after_s=6.0)
    assert scene.enqueued == ["team/run"], "the first report only"
    scene.said = dataclasses.replace(RUN, step=2)
    await scene.poll(after_s=6.0)
    assert scene.enqueued == ["team/run"] * 2
    report = scene.poller.report_of("uid")
    assert report is not None
    assert (report.run.step, report.read_at) == (2, scene.clock.now())


async def test_silence_wakes_once_after_half_a_minute_and_so_does_the_first_word_after_it() -> None:
    scene = Scene()
    await scene.poll()
    scene.said = None
    for _ in range(10):
        await scene.poll(after_s=6.0)
    assert scene.enqueued == ["team/run"] * 2
    assert scene.poller.silent_since("uid") == 1_000_006.0
    scene.said = RUN
    await scene.poll(after_s=6.0)
    assert scene.enqueued == ["team/run"] * 3
    assert scene.poller.silent_since("uid") is None


@pytest.mark.parametrize("num_jobs", [1, 1200, 4000])
async def test_one_lost_answer_is_no_silence_however_seldom_a_job_is_asked(num_jobs: int) -> None:
    scene, every = Scene(), poll_interval_s(num_jobs)
    targets = [Target(key=f"team/{number}", uid=str(number), address="a") for number in range(num_jobs)]
    await scene.poller.poll(targets)
    scene.enqueued.clear()
    scene.said = None
    await scene.poll(*targets, after_s=1.2 * every)
    scene.said = RUN
    await scene.poll(*targets, after_s=1.2 * every)
    assert scene.enqueued == [], "nothing flips"
    scene.said = None
    for _ in range(2):
        await scene.poll(*targets, after_s=max(1.2 * every, 20.0))
        assert scene.poller.silent_since("0") is None
    await scene.poll(*targets, after_s=max(1.2 * every, 20.0))
    assert scene.poller.silent_since("0") is not None
    assert len(scene.enqueued) == num_jobs


async def test_coordinator_that_cannot_be_asked_for_want_of_a_certificate_is_silent() -> None:
    scene, mute = Scene(), Target(key="team/run", uid="uid", address="")
    for _ in range(10):
        await scene.poll(mute, after_s=6.0)
    assert scene.asked == []
    assert scene.poller.silent_since("uid") == 1_000_006.0


async def test_first_step_of_a_later_attempt_is_news_that_decides() -> None:
    scene = Scene(dataclasses.replace(RUN, step=40, attempts=(types.TrainerAttempt(attempt=2, resume_step=40),)))
    await scene.poll()
    stepped = types.TrainerAttempt(attempt=2, resume_step=40, first_step_at=99.0)
    scene.said = dataclasses.replace(scene.said or RUN, step=41, attempts=(stepped,))
    await scene.poll(after_s=6.0)
    assert scene.enqueued == ["team/run"] * 2


async def test_numbers_of_many_jobs_cause_at_most_twenty_writes_a_second() -> None:
    scene = Scene()
    targets = [Target(key=f"team/{number}", uid=str(number), address="a") for number in range(100)]
    await scene.poll(*targets)
    scene.enqueued.clear()
    scene.said = dataclasses.replace(RUN, step=2)
    await scene.poll(*targets, after_s=6.0)
    assert len(scene.enqueued) == 20
    for _ in range(5):
        await scene.poll(*targets, after_s=6.0)
    assert set(scene.enqueued) == {target.key for target in targets}, "nobody is left out for long"


async def test_job_that_is_no_target_any_more_is_forgotten() -> None:
    scene = Scene()
    await scene.poll()
    await scene.poller.poll([])
    assert scene.poller.report_of("uid") is None


def test_bucket_lets_a_burst_through_and_then_its_rate() -> None:
    bucket = TokenBucket(per_s=10.0, burst=2)
    assert [bucket.take(0.0) for _ in range(4)] == pytest.approx([0.0, 0.0, 0.1, 0.2])
    assert bucket.take(10.0) == 0.0
    assert [TokenBucket(per_s=1.0, burst=1).try_take(0.0), bucket.try_take(10.0), bucket.try_take(10.0)] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(("per_s", "burst"), [(0.0, 1.0), (1.0, 0.0)])
def test_bucket_that_never_gives_is_refused(per_s: float, burst: float) -> None:
    with pytest.raises(ValueError, match="need per_s="):
        TokenBucket(per_s=per_s, burst=burst)
