"""What a run leaves behind of its trainer's attempts: where each continued, and which steps it made.

    history.jsonl   ... step 10, checkpoint 10, step 11, step 12, restart (attempt 2, resume_step 10), step 11 ...

Attempt 2 continued from the checkpoint of step 10, and made steps 11 and 12 again. Pure but for `read` and `audit`.
"""

import dataclasses
import itertools
import json
import pathlib
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rljob_api import enums

_AUDIT_S = 120


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of the trainer. durable: step of the newest checkpoint on record when it began; 0: none.

    resumed_from: step of the checkpoint that it loaded, 0 for none. steps: those it committed, in their order.
    """

    number: int
    durable: int = 0
    resumed_from: int = 0
    steps: tuple[int, ...] = ()

    @property
    def last(self) -> int:
        """Return the step that it came to."""
        return self.steps[-1] if self.steps else self.resumed_from


def attempts(lines: Iterable[str]) -> list[Attempt]:
    """Return the attempts that lines of a history.jsonl tell of, in their order."""
    result, durable = [Attempt(number=1)], 0
    for line in lines:
        entry: Any = json.loads(line)
        if entry["kind"] == "step":
            result[-1] = dataclasses.replace(result[-1], steps=(*result[-1].steps, entry["step"]))
        elif entry["kind"] == "checkpoint":
            durable = entry["step"]
        elif entry["kind"] == "restart" and entry.get("role") == enums.Role.TRAINER:
            result.append(Attempt(number=entry["attempt"], durable=durable, resumed_from=entry["resume_step"]))
    return result


def violations(history: Sequence[Attempt], *, last_step: int) -> list[str]:
    """Return where the attempts are not one history that ends with `last_step`, as sentences.

    Each begins once, at the newest checkpoint that was on record or at one that was not there yet, and makes each step
    behind it once: what the one before it made beyond that is made again, and nothing else is.
    """
    problems = []
    numbers = [attempt.number for attempt in history]
    # One that ended before it registered has left nothing.
    if numbers != sorted(set(numbers)):
        problems.append(f"attempts began as {numbers}")
    reached = 0
    for attempt in history:
        if not attempt.durable <= attempt.resumed_from <= reached:
            bounds = f"a checkpoint of step {attempt.durable} was on record, and step {reached} the last"
            problems.append(f"attempt {attempt.number} continued from step {attempt.resumed_from}: {bounds}")
        expected = tuple(range(attempt.resumed_from + 1, attempt.resumed_from + len(attempt.steps) + 1))
        if attempt.steps != expected:
            problems.append(f"attempt {attempt.number} made steps {attempt.steps} behind {attempt.resumed_from}")
        reached = attempt.last
    if reached != last_step:
        problems.append(f"the run came to step {reached}, not {last_step}")
    return problems


def recomputed(history: Sequence[Attempt]) -> list[int]:
    """Return, for each attempt but the first, how many steps of the one before it made again."""
    return [before.last - after.resumed_from for before, after in itertools.pairwise(history)]


def read(state: pathlib.Path) -> list[Attempt]:
    """Return the attempts of the run with this state directory, while it runs or afterwards."""
    text = (state / "history.jsonl").read_text(encoding="utf-8")
    # The last line may be on its way.
    return attempts(text[: text.rfind("\n") + 1].splitlines())


def audit(state: pathlib.Path) -> str:
    """Return what the ledger's audit finds in a state directory, "" if all its promises are kept."""
    command = [sys.executable, "-m", "rljob_workers.coordinator.ledger.audit", str(state)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_AUDIT_S)
    return done.stdout + done.stderr if done.returncode else ""
