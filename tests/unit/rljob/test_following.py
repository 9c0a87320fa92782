"""A job is followed through every way in which a watch ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob import errors, following
from rljob_testing.fake_job_api import FakeJobApi, event, stored


def follow(api: FakeJobApi, pauses: list[float] | None = None, count: int = 100) -> list[str]:
    """Return the versions that are yielded, at most `count`."""
    pauses = [] if pauses is None else pauses
    versions: list[str] = []
    for body in following.objects(api, "sums", sleep=pauses.append):
        versions.append(body["metadata"]["resourceVersion"])
        if len(versions) == count:
            break
    return versions


def modified(version: int) -> object:
    return event("MODIFIED", stored(version=version))


def test_a_watch_that_the_server_ends_continues_after_the_last_version_without_a_read() -> None:
    api = FakeJobApi(reads=[stored(version=5)], watches=[[modified(6)], [], [modified(7)]])
    assert follow(api, count=3) == ["5", "6", "7"]
    assert [call for call in api.calls if call[0] == "watch"] == [
        ("watch", "sums", "5"), ("watch", "sums", "6"), ("watch", "sums", "6"),
    ]  # fmt: skip
    assert [call for call in api.calls if call[0] == "get"] == [("get", "sums")]


def test_an_expired_version_is_read_again_at_once() -> None:
    pauses: list[float] = []
    expired = errors.ApiError("too old resource version", following.EXPIRED)
    api = FakeJobApi(reads=[stored(version=5), stored(version=90)], watches=[[expired], [modified(91)]])
    assert follow(api, pauses, count=3) == ["5", "90", "91"]
    assert pauses == []


@pytest.mark.parametrize("status", [0, 429, 500, 503])
def test_failures_that_pass_are_waited_for_longer_each_time_and_forgotten_after_an_event(status: int) -> None:
    pauses: list[float] = []
    failure = errors.ApiError("no", status)
    api = FakeJobApi(
        reads=[stored(version=1), failure, failure, stored(version=2), stored(version=4)],
        watches=[[failure], [modified(3), failure], [modified(5)]],
    )
    assert follow(api, pauses, count=5) == ["1", "2", "3", "4", "5"]
    assert pauses == [1.0, 2.0, 4.0, 1.0]


@pytest.mark.parametrize("status", [401, 403])
def test_what_trying_again_does_not_change_is_raised(status: int) -> None:
    api = FakeJobApi(reads=[stored()], watches=[[errors.of_answer(status, '{"message": "may not watch"}')]])
    with pytest.raises(errors.ApiError, match="may not watch"):
        follow(api)


def test_a_job_that_was_never_there_is_not_found() -> None:
    with pytest.raises(errors.NotFoundError):
        follow(FakeJobApi(reads=[errors.of_answer(404, "{}")]))


@pytest.mark.parametrize(
    "last",
    [
        [event("DELETED", stored(version=2))],
        # Another job of the name, made while no watch was there, or within one.
        [event("ADDED", stored(version=9, uid="u2"))],
    ],
)
def test_a_deleted_job_ends_it(last: list[object]) -> None:
    with pytest.raises(errors.GoneError, match="sums was deleted"):
        follow(FakeJobApi(reads=[stored()], watches=[last]))


@pytest.mark.parametrize("reread", [errors.of_answer(404, "{}"), stored(version=9, uid="u2")])
def test_a_job_that_is_gone_or_another_after_a_failure_ends_it(reread: object) -> None:
    api = FakeJobApi(reads=[stored(), reread], watches=[[errors.ApiError("reset")]])  # type: ignore[list-item]
    with pytest.raises(errors.GoneError):
        follow(api)


@given(st.lists(st.sampled_from(["event", "end", "expired", "failure"]), max_size=12))
def test_no_version_is_yielded_twice_in_a_row_or_out_of_order(course: list[str]) -> None:
    version, reads, watches = 1, [stored(version=1)], list[list[object]]()
    for what in course:
        version += 1
        if what == "event":
            watches.append([modified(version)])
        elif what == "end":
            watches.append([])
        else:
            watches.append([errors.ApiError("gone", following.EXPIRED if what == "expired" else 0)])
            reads.append(stored(version=version))
    watches.append([modified(version + 1), event("DELETED", stored(version=version + 2))])
    api, versions = FakeJobApi(reads=reads, watches=watches), list[int]()  # type: ignore[arg-type]
    bodies = following.objects(api, "sums", sleep=lambda _: None)
    with pytest.raises(errors.GoneError):
        versions.extend(int(body["metadata"]["resourceVersion"]) for body in bodies)
    assert versions == sorted(set(versions))
    assert versions[-1] == version + 1


def test_the_deadline_ends_it_without_an_error() -> None:
    clock = [0.0]

    def now() -> float:
        clock[0] += 4.0
        return clock[0]

    api = FakeJobApi(reads=[stored()], watches=[[], [], [], []])
    assert len(list(following.objects(api, "sums", deadline=20.0, now=now))) == 1
