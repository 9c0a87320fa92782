"""Looking again and again, at a terminal and elsewhere. No test sleeps: waiting is noted."""

import io
from collections.abc import Callable

from rljob_workers.cli import inspect


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def looks(*texts: str) -> Callable[[], inspect.Look]:
    left = list(texts)

    def look() -> inspect.Look:
        text = left.pop(0)
        return inspect.Look(text=text, goes_on=bool(left))

    return look


def shown(stream: io.StringIO, *texts: str, again: bool, redraw: bool = True) -> tuple[str, list[float]]:
    waits = list[float]()
    inspect.repeat(looks(*texts), again=again, redraw=redraw, stream=stream, wait=waits.append)
    return stream.getvalue(), waits


def test_one_look_is_printed_and_nothing_waited_for() -> None:
    assert shown(io.StringIO(), "a", "b", again=False) == ("a\n", [])
    assert shown(Terminal(), "a", "b", again=False) == ("a\n", [])


def test_elsewhere_a_line_tells_each_thing_that_is_new_and_the_whole_is_left_to_terminals() -> None:
    left = [(1, "step 1"), (1, "step 1, faster"), (2, "step 2"), (3, "ended")]

    def look() -> inspect.Look:
        key, line = left.pop(0)
        return inspect.Look(text=f"roles\n{line}", goes_on=bool(left), line=line, key=key)

    stream, waits = io.StringIO(), list[float]()
    inspect.repeat(look, again=True, stream=stream, wait=waits.append)
    assert stream.getvalue() == "step 1\nstep 2\nended\n"
    assert waits == [2.0] * 3


def test_elsewhere_looks_are_printed_below_each_other_until_the_end() -> None:
    assert shown(io.StringIO(), "a", "b", "c", again=True) == ("a\nb\nc\n", [2.0, 2.0])


def test_json_is_never_redrawn() -> None:
    assert shown(Terminal(), "{}", "{}", again=True, redraw=False) == ("{}\n{}\n", [2.0])


def test_on_a_terminal_the_last_look_stays_and_brackets_are_text() -> None:
    text, waits = shown(Terminal(), "step 1", "step [2]/\n[bold]4", again=True)
    assert waits == [2.0]
    assert "step 1" in text
    assert text.index("step 1") < text.index("step [2]/") < text.index("[bold]4")
