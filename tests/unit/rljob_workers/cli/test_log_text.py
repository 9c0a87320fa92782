"""Which lines are shown, and how they read."""

import math

import pytest

from rljob_api import errors
from rljob_workers.cli import choices, logs
from rljob_workers.local.rundir import log_lines


def line(at: float = 0.0, msg: str = "", *, source: str = "trainer", **fields: object) -> log_lines.Line:
    return log_lines.Line(at=at, source=source, msg=msg, fields=fields)


ENDS = {1: 10.0, 2: 20.0, 3: 30.0}


@pytest.mark.parametrize(
    ("asked", "inside", "outside"),
    [
        ("1", (-5.0, 10.0), (10.1,)),
        ("2", (10.1, 20.0), (10.0, 20.1)),
        ("2-3", (10.1, 30.0), (10.0, 30.1)),
        ("4", (30.1, 999.0), (30.0,)),
        ("6", (), (30.1, 999.0)),
    ],
)
def test_line_without_a_step_belongs_to_the_step_that_was_worked_on(
    asked: str, inside: tuple[float, ...], outside: tuple[float, ...]
) -> None:
    wanted = logs.LineFilter(steps=logs.parse_steps(asked, ENDS))
    assert [at for at in (*inside, *outside) if wanted.matches(line(at))] == list(inside)


def test_line_that_names_its_step_belongs_to_it_whenever_it_was_written() -> None:
    wanted = logs.LineFilter(steps=logs.parse_steps("2", ENDS))
    assert wanted.matches(line(99.0, step=2))
    assert not wanted.matches(line(15.0, step=3))


def test_without_a_history_only_lines_that_name_the_step_are_shown() -> None:
    wanted = logs.LineFilter(steps=logs.parse_steps("1", {}))
    assert wanted.matches(line(step=1))
    assert not wanted.matches(line())


@pytest.mark.parametrize("text", ["", "0", "a", "3-2", "-1", "1-", "1,2"])
def test_unclear_step_is_refused_with_what_would_be_right(text: str) -> None:
    with pytest.raises(errors.ManifestError, match="must be a step such as 7 or a range such as 5-9"):
        logs.parse_steps(text, ENDS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("30s", 970.0), ("10m", 400.0), ("2h", -6200.0), ("1d", -85400.0), ("1970-01-01T00:01:00Z", 60.0)],
)
def test_since_is_a_span_before_now_or_a_time(text: str, expected: float) -> None:
    assert logs.parse_since(text, 1000.0) == expected


@pytest.mark.parametrize("text", ["soon", "10", "-5m", "1w"])
def test_unclear_since_is_refused(text: str) -> None:
    with pytest.raises(errors.ManifestError, match="--since is .* must be a span such as 30s"):
        logs.parse_since(text, 1000.0)


@pytest.mark.parametrize(
    ("level", "shown"),
    [("debug", 4), ("info", 3), ("warning", 1), ("error", 0)],
)
def test_lines_without_a_level_count_as_info(level: str, shown: int) -> None:
    lines = [line(level="debug"), line(level="info"), line(), line(level="warning")]
    wanted = logs.LineFilter(level=choices.Level(level))
    assert sum(map(wanted.matches, lines)) == shown


def test_group_and_time_are_filters() -> None:
    assert logs.LineFilter(groups=["g1"]).matches(line(group="g1"))
    assert not logs.LineFilter(groups=["g1"]).matches(line())
    assert not logs.LineFilter(since=5.0).matches(line(4.9))


def test_role_names_all_its_processes_and_a_process_itself() -> None:
    sources = ["runner", "rollout-0", "rollout-1", "trainer"]
    assert logs.checked_roles(["rollout", "runner"], sources) == {"runner", "rollout-0", "rollout-1"}
    assert logs.checked_roles(["rollout-1"], sources) == {"rollout-1"}
    assert logs.checked_roles([], sources) == set(sources)
    with pytest.raises(errors.ManifestError, match="--role is 'roll'.*available: runner, rollout-0"):
        logs.checked_roles(["roll"], sources)


def test_line_reads_time_source_level_text_and_what_it_is_about() -> None:
    shown = logs.line_as_text(line(61.25, "leased", level="warning", step=3, group="g1", lease="l", pod="p"))
    assert shown == ["1970-01-01 00:01:01.250 trainer      warning: leased  step=3 group=g1"]


@pytest.mark.covers("security")
def test_nothing_in_a_line_acts_on_the_terminal() -> None:
    shown = logs.line_as_text(line(0.0, "a\x1b[2J\nb", level="\x07", group="\x9b", exc="T\x1b\n  at\x08 x\n"))
    assert all(one.isprintable() for one in shown)
    assert shown[1:] == [r"    T\x1b", r"      at\x08 x"]


def test_json_has_the_fields_of_the_line_and_its_source() -> None:
    own = logs.line_as_json(line(1.0, "m", ts="1970-01-01T00:00:01.000+00:00", step=3))
    assert own == {"ts": "1970-01-01T00:00:01.000+00:00", "msg": "m", "step": 3, "source": "trainer"}
    foreign = logs.line_as_json(line(1.0, "boom"))
    assert foreign == {"ts": "1970-01-01T00:00:01.000+00:00", "msg": "boom", "source": "trainer"}


def test_steps_that_were_not_reached_have_no_time() -> None:
    assert logs.parse_steps("9", ENDS).after == math.inf
