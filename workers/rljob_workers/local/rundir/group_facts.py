"""Asks the coordinator's package what became of groups: a program of its own, since only that package reads the ledger.

One process per command; questions and answers are lines, so memory does not grow with what is asked.
"""

import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pydantic

from rljob_api import errors

_PROGRAM = "rljob_workers.coordinator.ledger.group_facts"


class Facts(pydantic.BaseModel):
    """What the ledger says of a group. advantages: by sample, a value per row of it; see the program's description."""

    model_config = pydantic.ConfigDict(frozen=True, extra="ignore")

    group: str
    in_ledger: bool = False
    state: str = ""
    attempt: int = 0
    step: int | None = None
    age: int | None = None
    drop_reason: str = ""
    source: str = ""
    advantages: Mapping[str, Sequence[float]] | None = None

    def advantage(self, sample: int) -> float | None:
        """Return a sample's advantage: 0 where none of its rows adds to the loss, None if unknown or rows differ."""
        if self.advantages is None:
            return None
        values = set(self.advantages.get(str(sample), ()))
        return values.pop() if len(values) == 1 else (None if values else 0.0)


class Ledger:
    """Answers about groups of one run. Without a ledger file every group is unknown."""

    def __init__(self, state: pathlib.Path) -> None:
        """The process is started by the first question. End it with `close`."""
        self._state = state
        self._process: subprocess.Popen[str] | None = None
        self._facts: dict[str, Facts] = {}

    def facts(self, group: str) -> Facts:
        """Return what the ledger says of a group. Raises LedgerError if the ledger cannot be read."""
        if group not in self._facts:
            # The rows of a group follow each other: one group, or those of the step that was asked for, are enough.
            self._facts = {group: self._ask(group) if self._exists() else Facts(group=group)}
        return self._facts[group]

    def groups_of_step(self, step: int) -> list[str]:
        """Return the ids of the groups of a step, none if it has none. Raises LedgerError."""
        self._facts = {facts.group: facts for facts in self._of_step(step)} if self._exists() else {}
        return list(self._facts)

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def _exists(self) -> bool:
        return (self._state / "ledger.sqlite").exists()

    def _of_step(self, step: int) -> list[Facts]:
        done = subprocess.run([*self._command(), "--step", str(step)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise errors.LedgerError(_last_line(done.stderr))
        return [Facts.model_validate_json(line) for line in done.stdout.splitlines()]

    def _ask(self, group: str) -> Facts:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{group}\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            _, stderr = self._process.communicate()
            self._process = None
            raise errors.LedgerError(_last_line(stderr))
        return Facts.model_validate_json(line)

    def _command(self) -> list[str]:
        # -P: the current folder is the user's; a `json.py` in it is not ours to import.
        return [sys.executable, "-P", "-m", _PROGRAM, str(self._state)]


def _last_line(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.strip()]
    return lines[-1].removeprefix("error: ") if lines else "the ledger's reader ended without an answer"
