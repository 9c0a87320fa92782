"""One stream of lines out of many."""

import itertools
import json
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_workers.local.rundir import log_lines


def ours(seconds: int, msg: str) -> str:
    return json.dumps({"ts": f"2026-01-01T00:00:{seconds:02d}.500+00:00", "level": "info", "msg": msg})


# 2026-01-01 is 20454 days after 1970-01-01.
MIDNIGHT = 20454 * 86400.0


def test_lines_of_many_processes_come_by_time_and_keep_their_order() -> None:
    rollout = log_lines.stream([ours(1, "a"), ours(5, "d")], source="rollout")
    trainer = log_lines.stream([ours(3, "b"), ours(3, "c"), ours(9, "e")], source="trainer")
    found = list(log_lines.merge([rollout, trainer]))
    assert [(line.source, line.msg) for line in found] == [
        ("rollout", "a"), ("trainer", "b"), ("trainer", "c"), ("rollout", "d"), ("trainer", "e"),
    ]  # fmt: skip
    assert found[0].at == MIDNIGHT + 1.5


def test_merging_holds_no_more_than_a_line_of_each_stream() -> None:
    def endless(name: str) -> Iterator[str]:
        return (ours(second, name) for second in itertools.count())

    streams = [log_lines.stream(endless(name), source=name) for name in ("a", "b")]
    assert [line.msg for line in itertools.islice(log_lines.merge(streams), 4)] == ["a", "b", "a", "b"]


def test_traceback_stays_with_the_line_before_it() -> None:
    crash = ["Traceback (most recent call last):", "  boom", "ValueError: {no json"]
    rollout = log_lines.stream([ours(1, "a"), *crash, ours(9, "b")], source="rollout")
    trainer = log_lines.stream([ours(2, "x"), ours(3, "y")], source="trainer")
    assert [line.msg for line in log_lines.merge([rollout, trainer])] == ["a", *crash, "x", "y", "b"]


def test_lines_before_the_first_time_have_that_of_the_start() -> None:
    (line,) = log_lines.stream(["ImportError"], source="trainer", before=77.0)
    assert (line.at, line.msg) == (77.0, "ImportError")


def test_of_a_progress_bar_the_last_state_is_left() -> None:
    assert log_lines.parse("0%\r 50%\r100%\r", source="r", before=0.0).msg == "100%"
    assert log_lines.parse("\r", source="r", before=0.0).msg == ""


@pytest.mark.parametrize(
    "text", ['{"msg": "no time"}', "{", "[1]", "{" * 100_000, '{"ts": "yesterday", "msg": "x"}', "null"]
)
def test_foreign_json_is_a_line_like_any_other(text: str) -> None:
    assert log_lines.parse(text, source="r", before=5.0).at == 5.0


@pytest.mark.parametrize(("step", "expected"), [(3, 3), ("3", None), (True, None), (None, None)])
def test_step_of_a_line_is_a_number_or_none(step: object, expected: int | None) -> None:
    line = log_lines.Line(at=0.0, source="r", msg="", fields={"step": step})
    assert line.step == expected


@settings(deadline=None)
@given(st.lists(st.lists(st.one_of(st.integers(0, 59), st.none()), max_size=8), max_size=4))
def test_merged_times_never_fall_and_no_line_is_lost(processes: list[list[int | None]]) -> None:
    streams = [
        log_lines.stream(
            [f"foreign {index}" if at is None else ours(at, f"ours {index}") for index, at in enumerate(seconds)],
            source=f"p{number}",
        )
        for number, seconds in enumerate(processes)
    ]
    found = list(log_lines.merge(streams))
    assert [line.at for line in found] == sorted(line.at for line in found)
    for number, seconds in enumerate(processes):
        own = [line.msg.split()[1] for line in found if line.source == f"p{number}"]
        assert own == [str(index) for index in range(len(seconds))]
