"""Shows something once, or again and again: redrawn in place on a terminal, elsewhere a line for what is new.

A log that is followed for days would otherwise hold the same block every two seconds.
"""

import dataclasses
import sys
import time
from collections.abc import Callable
from typing import TextIO

PERIOD_S = 2.0
# Unlike any key.
_NOTHING = object()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is seen at one moment. goes_on: it may be another thing later.

    line: the same in one line; told where lines are, as often as `key` is another one. JSON has none: all of it is new.
    """

    text: str
    goes_on: bool
    line: str = ""
    key: object = None


def show(
    look: Callable[[], Look],
    *,
    again: bool,
    redraw: bool = True,
    stream: TextIO | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Print what `look` returns; if `again`, until it does not go on. `redraw`: in place, if `stream` is a terminal."""
    output = sys.stdout if stream is None else stream
    if again and redraw and output.isatty():
        _redraw(look, output, wait)
        return
    last: object = _NOTHING
    while True:
        seen = look()
        if not again or not seen.line:
            print(seen.text, file=output, flush=True)
        elif seen.key != last:
            print(seen.line, file=output, flush=True)
        last = seen.key
        if not again or not seen.goes_on:
            return
        wait(PERIOD_S)


def _redraw(look: Callable[[], Look], stream: TextIO, wait: Callable[[float], None]) -> None:
    # Imported here: a terminal library is needed by this alone.
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(Text(""), console=Console(file=stream, highlight=False), auto_refresh=False) as view:
        while True:
            seen = look()
            # As plain text: brackets in it are no markup.
            view.update(Text(seen.text), refresh=True)
            if not seen.goes_on:
                return
            wait(PERIOD_S)
