"""Runs of the learning bench, stored as a JSON line each, and the pairs that are compared."""

import dataclasses
import json
import pathlib
import statistics
from collections.abc import Iterable, Sequence

from tests.bench import curves, paired
from tests.bench.learning import sides

FIRST, LAST = 3, 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A cell that was run; the figures are those of `scoring.Outcome`. base: digest of the base model's bytes."""

    cell: sides.Cell
    rewards: tuple[float, ...]
    held_out: float
    sampled: float
    gap: float
    cpu_s: float
    base: str
    commit: str
    machine: str
    time: str

    @property
    def first_reward(self) -> float:
        """What the base model earns: the mean of the first steps."""
        return statistics.fmean(self.rewards[:FIRST])

    @property
    def halfway(self) -> float:
        """The reward halfway from the first steps to the last ones."""
        return (self.first_reward + statistics.fmean(self.rewards[-LAST:])) / 2

    def seconds_to(self, target: float) -> float | None:
        """Return the processor seconds until the mean of a few steps reached a reward; None: it never did."""
        steps = curves.steps_to_target(self.rewards, target)
        return None if steps is None else self.cpu_s * steps / len(self.rewards)

    @property
    def area(self) -> float:
        """The mean reward of the whole run: who learns earlier has more."""
        return statistics.fmean(self.rewards)


def to_line(run: Run) -> str:
    """Return the run as a line; figures have four digits, more than they are worth."""
    fields = dataclasses.asdict(run) | {"rewards": [round(reward, 4) for reward in run.rewards]}
    for name in ("held_out", "sampled", "gap"):
        fields[name] = round(fields[name], 4)
    return json.dumps(fields | {"cpu_s": round(run.cpu_s, 1)}) + "\n"


def from_line(line: str) -> Run:
    """Return the run of a line."""
    fields = json.loads(line)
    return Run(**fields | {"cell": sides.Cell(**fields["cell"]), "rewards": tuple(fields["rewards"])})


def read(path: pathlib.Path) -> list[Run]:
    """Return the runs of a file, none if there is none."""
    return [from_line(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def missing(cells: Iterable[sides.Cell], runs: Iterable[Run], *, base: str) -> list[sides.Cell]:
    """Return the cells that no run with this base model is of, in order."""
    there = {run.cell for run in runs if run.base == base}
    return [cell for cell in cells if cell not in there]


def differences(runs: Sequence[Run], *, side: str, base_side: str, task: str, name: str = "held_out") -> list[float]:
    """Return a figure of `side` less that of `base_side`, for each pair of runs of a task that are alike else."""
    by_key = {(run.cell, run.base): run for run in runs}
    each = []
    for (cell, base), run in sorted(by_key.items()):
        if (cell.side, cell.task) == (base_side, task):
            other = by_key.get((dataclasses.replace(cell, side=side), base))
            if other is not None:
                each.append(getattr(other, name) - getattr(run, name))
    return each


def by_task(
    runs: Sequence[Run], *, side: str, base_side: str, tasks: Sequence[str], name: str = "held_out"
) -> dict[str, paired.Difference]:
    """Return the mean difference of each task that has a pair."""
    each = {task: differences(runs, side=side, base_side=base_side, task=task, name=name) for task in tasks}
    return {task: paired.difference(values) for task, values in each.items() if values}
