"""Shows a run: a live view on a terminal, plain lines otherwise. Both are fed the same frames a few times a second."""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Protocol, TextIO

from rljob_api import enums, types
from rljob_workers.local.run import progress, supervise

# No one should wonder whether anything happens: the longest silence before and after the first step.
_SILENT_AT_START_S = 8.0
_SILENT_S = 30.0
_CHANGE_S = 2.0
_RESULT_S = 5.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What is known at one moment. `note` overrides the phase while the run is stopped; `stalled` is the chain."""

    elapsed_s: float
    status: types.RunStatus | None
    states: Mapping[str, supervise.State]
    rollouts_wanted: int
    note: str = ""
    stalled: str = ""


class Display(Protocol):
    """Where a run is shown."""

    def show(self, frame: Frame) -> None: ...

    def say(self, text: str) -> None:
        """Print a line that stays."""

    def close(self) -> None: ...


class PlainDisplay:
    """One line per step, one per change of phase, and a sign of life in between."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._phase, self._spoken_at = "", -_SILENT_S
        # The step at which this segment began, then the last one reported.
        self._step: int | None = None
        self._stepped = False

    def show(self, frame: Frame) -> None:
        """Print what changed."""
        if frame.status is not None and self._is_new(frame.status.step):
            self._speak(frame, progress.progress_line(frame.status, rollouts_wanted=frame.rollouts_wanted))
            return
        phase = frame.note or progress.phase_line(frame.status, frame.states)
        if self._due(frame, phase):
            self._phase = phase
            self._speak(frame, f"{phase}; {frame.stalled}" if frame.stalled and not frame.note else phase)

    def say(self, text: str) -> None:
        """Print a line. A reader that went away does not end the run."""
        with contextlib.suppress(OSError):
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing is held."""

    def _is_new(self, step: int) -> bool:
        """Return whether a step was finished since the last frame; the first one seen is where the segment begins."""
        new = self._step is not None and step > self._step
        self._step, self._stepped = step, self._stepped or new
        return new

    def _due(self, frame: Frame, phase: str) -> bool:
        silent_s = frame.elapsed_s - self._spoken_at
        running = frame.status is not None and frame.status.phase is enums.Phase.RUNNING
        if self._stepped and running and not frame.note:
            return silent_s >= _SILENT_S
        if phase != self._phase:
            # Counts such as "evaluating 120/200" change all the time; a new kind of phase is reported at once.
            same_kind = phase.split(" ")[0] == self._phase.split(" ")[0]
            return silent_s >= (_RESULT_S if same_kind else _CHANGE_S)
        return silent_s >= _SILENT_AT_START_S

    def _speak(self, frame: Frame, text: str) -> None:
        self._spoken_at = frame.elapsed_s
        self.say(f"[{progress.duration(frame.elapsed_s):>6}] {text}")


class LiveDisplay:
    """A few lines at the bottom of the terminal that are redrawn; what is said scrolls above them."""

    def __init__(self, title: str) -> None:
        # Imported here: plain runs and `--help` need no terminal library.
        from rich.console import Console
        from rich.live import Live

        self._console = Console(highlight=False)
        self._title = title
        self._live = Live("", console=self._console, refresh_per_second=4, transient=True)
        self._live.start()

    def show(self, frame: Frame) -> None:
        from rich.text import Text

        self._live.update(Text("\n".join(live_lines(self._title, frame))))

    def say(self, text: str) -> None:
        """Print a line above the live region."""
        self._console.print(text, markup=False)

    def close(self) -> None:
        self._live.stop()


def live_lines(title: str, frame: Frame) -> list[str]:
    lines = [f"{title}  {progress.duration(frame.elapsed_s)}"]
    if frame.status is not None and (frame.status.step > 0 or frame.status.reward_mean is not None):
        lines.append(progress.progress_line(frame.status, rollouts_wanted=frame.rollouts_wanted))
    lines.append(frame.note or progress.phase_line(frame.status, frame.states))
    lines += [f"  {progress.role_line(name, state, frame.status)}" for name, state in frame.states.items()]
    if frame.stalled:
        lines.append(f"  {frame.stalled}")
    return lines


def choose(*, stream: TextIO, title: str) -> Display:
    """Return the live view for a terminal, plain lines for anything else."""
    return LiveDisplay(title) if stream.isatty() else PlainDisplay(stream)
