"""The process of one tracker: it follows history.jsonl and hands each point to the tracker, at least once.

`python -m rljob_workers.coordinator.trackers.follower --config coordinator.json`, with the tracker's name in the
variable RLJOB_TRACKER, works until its standard input ends, then delivers what is left and exits. After each flush its
place is on the disk, as a sequence number of the history. The ledger uses none twice; so a torn last line, and lines
that are written again after a crash, need no rule of their own.
"""

import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import select
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from rljob_api import enums, errors, process_config
from rljob_workers.coordinator.reporting import history
from rljob_workers.coordinator.trackers import base
from rljob_workers.runtime import atomic, boot, redaction

logger = logging.getLogger(__name__)
TRACKER_VARIABLE = "RLJOB_TRACKER"
# What a call of a tracker may take, seconds: the longest time for which a service that does not answer is waited for.
CALL_S = 120.0
_MARK = "delivered"
# Lines between two flushes.
_BATCH = 64
_POLL_S = 1.0


@dataclasses.dataclass
class Follower:
    """Reads one history for one tracker. `delivered`: sequence number of the last line that the tracker has stored.

    bounded: what every call of the tracker is made within; raises what the call raises.
    """

    history: pathlib.Path
    folder: pathlib.Path
    tracker: base.Tracker
    bounded: Callable[[str], contextlib.AbstractContextManager[None]]

    def __post_init__(self) -> None:
        self.delivered = delivered(self.folder)
        self._seq, self._position = self.delivered, 0

    def deliver(self) -> None:
        """Hand over all complete lines that are new, and remember them in batches. Raises what the tracker raises."""
        for lines, (seq, line) in enumerate(self._new_lines(), start=1):
            self._hand_over(line)
            self._seq = seq
            if lines % _BATCH == 0:
                self._remember()
        self._remember()

    def _new_lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        if not self.history.exists():
            return
        with self.history.open("rb") as file:
            if file.seek(0, os.SEEK_END) < self._position:
                self._position = 0
            file.seek(self._position)
            for raw in file:
                if not raw.endswith(b"\n"):
                    # The writer has not finished this line, or will cut it off.
                    return
                self._position += len(raw)
                line = _parsed(raw)
                if line is not None and int(line["seq"]) > self._seq:
                    yield int(line["seq"]), line

    def _hand_over(self, line: dict[str, Any]) -> None:
        step, point = base.rewound_to(line), base.point(line)
        if step is not None:
            with self.bounded("rewind"):
                self.tracker.rewind(step)
        elif point is not None:
            with self.bounded("log"):
                self.tracker.log(point)

    def _remember(self) -> None:
        if self._seq == self.delivered:
            return
        with self.bounded("flush"):
            self.tracker.flush()
        atomic.write_text(self.folder / _MARK, f"{self._seq}\n")
        self.delivered = self._seq


def delivered(folder: pathlib.Path) -> int:
    """Return the sequence number of the last line that the tracker of a folder has stored, 0 if there is none."""
    try:
        return int((folder / _MARK).read_text(encoding="ascii"))
    except FileNotFoundError:
        return 0


def _parsed(raw: bytes) -> dict[str, Any] | None:
    try:
        return dict(json.loads(raw))
    except ValueError:
        logger.warning("skipped a line of the history that is not JSON (%d bytes)", len(raw))
        return None


@dataclasses.dataclass
class Bound:
    """Calls of a tracker. One that raises becomes an UnavailableError without its text; one that takes longer than
    `call_s` ends the process with exit code 75, for no thread can end another.
    """

    label: str
    call_s: float = CALL_S

    @contextlib.contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        """Bound the calls of the block. what: the method, for messages."""
        watch = threading.Timer(self.call_s, self._end, (what, threading.get_ident()))
        watch.daemon = True
        watch.start()
        try:
            yield
        except errors.RLJobError:
            raise
        except Exception as error:  # boundary: code of a tracker
            raise errors.UnavailableError(f"{self.label}: {what} raised {redaction.describe(error)}") from error
        finally:
            watch.cancel()

    def _end(self, what: str, thread: int) -> None:
        last = traceback.extract_stack(sys._current_frames()[thread])[-1]
        place = f"{pathlib.Path(last.filename).name}:{last.lineno} in {last.name}"
        logger.error("%s: %s has not returned within %.0f s (%s)", self.label, what, self.call_s, place)
        os._exit(int(enums.ExitCode.INFRASTRUCTURE))


def follow(config: process_config.CoordinatorConfig, name: str, *, call_s: float = CALL_S) -> None:
    """Deliver until standard input ends, and then what is left. Raises ManifestError and UnavailableError."""
    spec = next(each for each in config.spec.observability.trackers if each.name == name)
    bounded = Bound(f"tracker {name!r} ({spec.type})", call_s)
    with bounded("__init__"):
        tracker = base.make(config, spec)
    follower = Follower(pathlib.Path(config.state_dir) / history.FILE_NAME, base.folder(config, name), tracker, bounded)
    while not select.select([sys.stdin], [], [], _POLL_S)[0]:
        follower.deliver()
    follower.deliver()
    with bounded("close"):
        tracker.close()


def main() -> int:
    """Run the process."""
    boot.die_with_parent()
    invocation = boot.parse(
        process_config.CoordinatorConfig,
        program="rljob-tracker",
        about=f"Follows a run's history for the tracker that {TRACKER_VARIABLE} names.",
    )
    boot.configure_process(invocation.config)
    # The last words of a pod are the coordinator's.
    name = os.environ[TRACKER_VARIABLE]
    return boot.run_main(lambda: follow(invocation.config, name), termination_log=os.devnull)


if __name__ == "__main__":
    sys.exit(main())
