import dataclasses

import pytest

from rljob_api import enums, types
from rljob_operator.clock import TokenBucket
from rljob_operator.reports import Reports, Target
from rljob_testing.clock import FakeClock

RUN = types.RunStatus(job="job", phase=enums.Phase.RUNNING, step=1, last_progress_at=0.0)
TARGET = Target(key="team/run", uid="uid", address="coordinator")


class Scene:
    """Reports, the keys that they make due, and the time."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.enqueued: list[str] = []
        self.reports = Reports(enqueue=self.enqueued.append, now=self.clock.now, monotonic=self.clock.monotonic)

    def hears(self, run: types.RunStatus = RUN, *, after_s: float = 0.0, target: Target = TARGET) -> None:
        self.clock.tick(after_s)
        self.reports.heard(target, run)
        self.reports.show_next()

    def fails(self, *, after_s: float, since: float | None = None) -> None:
        self.clock.tick(after_s)
        self.reports.failed(TARGET, since=since)


def _targets(number: int) -> list[Target]:
    return [Target(key=f"team/{each}", uid=str(each), address="a") for each in range(number)]


def test_report_that_shows_nothing_new_wakes_nobody() -> None:
    scene = Scene()
    scene.hears()
    scene.hears(dataclasses.replace(RUN, last_progress_at=99.0, tokens_per_s=5.0), after_s=6.0)
    assert scene.enqueued == ["team/run"], "the first report only"
    scene.hears(dataclasses.replace(RUN, step=2), after_s=6.0)
    assert scene.enqueued == ["team/run"] * 2
    report = scene.reports.report_of("uid")
    assert report is not None
    assert (report.run.step, report.read_at) == (2, scene.clock.now())


def test_silence_wakes_once_after_half_a_minute_and_so_does_the_first_word_after_it() -> None:
    scene = Scene()
    scene.hears()
    for _ in range(10):
        scene.fails(after_s=6.0)
    assert scene.enqueued == ["team/run"] * 2
    assert scene.reports.silent_since("uid") == 1_000_006.0
    scene.hears(after_s=6.0)
    assert scene.enqueued == ["team/run"] * 3
    assert scene.reports.silent_since("uid") is None


def test_silence_of_a_stream_that_was_quiet_begins_with_its_last_report() -> None:
    scene = Scene()
    scene.hears()
    scene.fails(after_s=24.0, since=scene.clock.now())
    scene.fails(after_s=6.0)
    assert scene.reports.silent_since("uid") is None, "two tries are no proof"
    scene.fails(after_s=6.0)
    assert scene.reports.silent_since("uid") == 1_000_000.0


def test_tries_that_come_late_are_no_silence_before_the_third() -> None:
    scene = Scene()
    scene.hears()
    for _ in range(2):
        scene.fails(after_s=100.0)
        assert scene.reports.silent_since("uid") is None
    scene.fails(after_s=100.0)
    assert scene.reports.silent_since("uid") == 1_000_100.0


def test_one_stream_that_breaks_flips_nothing() -> None:
    scene = Scene()
    scene.hears()
    scene.fails(after_s=3.0)
    scene.hears(after_s=1.0)
    scene.fails(after_s=60.0)
    scene.fails(after_s=29.0)
    assert scene.enqueued == ["team/run"], "what was tried before the last word does not count"


def test_first_step_of_a_later_attempt_is_news_that_decides() -> None:
    scene = Scene()
    resumed = dataclasses.replace(RUN, step=40, attempts=(types.TrainerAttempt(attempt=2, resume_step=40),))
    scene.hears(resumed)
    stepped = types.TrainerAttempt(attempt=2, resume_step=40, first_step_at=99.0)
    scene.reports.heard(TARGET, dataclasses.replace(resumed, step=41, attempts=(stepped,)))
    assert scene.enqueued == ["team/run"] * 2


def test_numbers_of_many_jobs_are_shown_in_turn_twenty_a_second() -> None:
    scene, targets = Scene(), _targets(100)
    for target in targets:
        scene.hears(target=target)
    scene.enqueued.clear()
    scene.clock.tick(1.0)
    for second in range(5):
        # Each of them has something new in each second.
        for target in targets:
            scene.reports.heard(target, dataclasses.replace(RUN, step=2 + second))
        scene.reports.show_next()
        assert scene.enqueued[20 * second :] == [target.key for target in targets[20 * second : 20 * second + 20]]
        scene.clock.tick(1.0)
    assert len(scene.enqueued) == 100, "whoever came first is shown again after all others"


def test_what_decides_does_not_wait_behind_numbers() -> None:
    scene, targets = Scene(), _targets(100)
    for target in targets:
        scene.hears(target=target)
    for target in targets:
        scene.reports.heard(target, dataclasses.replace(RUN, step=2))
    scene.enqueued.clear()
    scene.reports.heard(targets[-1], dataclasses.replace(RUN, phase=enums.Phase.FINISHED))
    assert scene.enqueued == [targets[-1].key]


def test_job_that_is_listened_to_no_more_is_forgotten() -> None:
    scene = Scene()
    scene.hears()
    scene.reports.heard(TARGET, dataclasses.replace(RUN, step=2))
    scene.reports.keep_only(set())
    assert scene.reports.report_of("uid") is None
    scene.enqueued.clear()
    scene.clock.tick(1.0)
    scene.reports.show_next()
    assert scene.enqueued == []


def test_age_is_of_ninety_nine_in_a_hundred_and_not_of_the_silent() -> None:
    scene, targets = Scene(), _targets(200)
    assert scene.reports.age_s() == 0.0
    for target in targets[:2]:
        scene.reports.heard(target, RUN)
    scene.clock.tick(90.0)
    for target in targets[2:]:
        scene.reports.heard(target, RUN)
    scene.clock.tick(5.0)
    assert scene.reports.age_s() == 95.0, "two of two hundred are not below 1 in 100"
    for _ in range(3):
        scene.clock.tick(15.0)
        scene.reports.failed(targets[0])
    assert scene.reports.silent_since("0") is not None
    assert scene.reports.age_s() == 50.0


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
