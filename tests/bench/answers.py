"""What runs of learning curves say: whether each estimator learns, and what staleness and the coupled loss cost. Pure.

A cost is the mean difference of pairs of runs that are alike but for one thing, seed included, with its standard error.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from tests.bench import curves

Pairs: TypeAlias = Sequence[tuple[curves.Run, curves.Run]]
# A gain of the mean reward that is not an accident of which prompts a step had: their means of one run differ by less.
LEARNT = 0.1


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """Of pairs: mean, and standard error of the mean; None of a single pair."""

    mean: float
    error: float | None
    num_pairs: int

    def __str__(self) -> str:
        """Return it with its sign; in brackets where it is less than two standard errors, or these are not known."""
        if self.error is None:
            return f"({self.mean:+.3f})"
        text = f"{self.mean:+.3f} ± {self.error:.3f}"
        return text if abs(self.mean) >= 2 * self.error else f"({text})"

    @property
    def in_words(self) -> str:
        """Return what it is where it stands for a cost of accuracy: a gain, a cost, or nothing that can be reported."""
        if self.error is None:
            return "has one pair of runs, which does not tell"
        if abs(self.mean) < 2 * self.error:
            return "costs nothing that these runs show"
        return f"{'costs' if self.mean < 0 else 'gains'} {abs(self.mean):.2f}"


def gain(run: curves.Run) -> float:
    """Return by how much the last steps are above the first."""
    return curves.last_reward(run) - curves.first_reward(run)


def pairs(runs: Iterable[curves.Run], *, base: dict[str, object], other: dict[str, object]) -> Pairs:
    """Return the pairs of a run that has the values of `base` and one that has those of `other`, and is alike else."""
    by_cell = {run.cell: run for run in runs}
    found = []
    for cell, run in sorted(by_cell.items()):
        if all(getattr(cell, name) == value for name, value in base.items()):
            changed = by_cell.get(dataclasses.replace(cell, **other))  # type: ignore[arg-type]  # fields of a cell
            if changed is not None:
                found.append((run, changed))
    return found


def difference(compared: Pairs, of: Callable[[curves.Run], float]) -> Difference:
    """Return the mean of `of` over the others less that of the bases. Raises ValueError without a pair."""
    if not compared:
        raise ValueError("there is no pair of runs to compare")
    each = [of(other) - of(base) for base, other in compared]
    error = statistics.stdev(each) / math.sqrt(len(each)) if len(each) > 1 else None
    return Difference(statistics.fmean(each), error, len(each))


def lines(runs: Sequence[curves.Run]) -> list[str]:
    """Return the two sections of the page."""
    return [
        "## Does each learn?",
        f"Gain is the mean reward of the last {curves.LAST} steps less that of the first {curves.FIRST}.",
        "",
        f"| estimator | runs | gained {LEARNT} or more | mean gain | smallest |",
        "|---|---|---|---|---|",
        *(_learns(name, [run for run in runs if run.cell.estimator == name]) for name in curves.estimators(runs)),
        "",
        "## Does staleness cost anything?",
        "Mean differences of pairs of runs that are alike but for what is named (same estimator, seed and all else),",
        "with the standard error of the mean; in brackets what is less than two of them: these runs do not show it.",
        "",
        "| what | pairs | reward, last steps | held out |",
        "|---|---|---|---|",
        *_costs(runs),
        "",
        "Of held-out accuracy, then:",
        *_lags_in_words(runs),
    ]


def _learns(name: str, runs: Sequence[curves.Run]) -> str:
    gains = [gain(run) for run in runs]
    num_learnt = sum(each >= LEARNT for each in gains)
    # Nothing has no sign.
    mean, smallest = (round(figure, 2) + 0.0 for figure in (statistics.fmean(gains), min(gains)))
    return f"| {name} | {len(runs)} | {num_learnt} | {mean:.2f} | {smallest:.2f} |"


def _held_out(compared: Pairs) -> Difference:
    return difference(compared, lambda run: run.held_out)


def _lags_in_words(runs: Sequence[curves.Run]) -> list[str]:
    found = [
        f"- lag {lag} with the {loss} loss {_held_out(compared).in_words};"
        for loss in curves.LOSSES
        for lag in curves.LAGS[1:]
        if (compared := pairs(runs, base={"lag": 0, "loss": loss}, other={"lag": lag}))
    ]
    return [*found[:-1], found[-1][:-1] + "."] if found else ["- there is no pair of runs to tell."]


def _costs(runs: Sequence[curves.Run]) -> list[str]:
    asked = [
        (f"lag {lag} instead of 0, {loss}", {"lag": 0, "loss": loss}, {"lag": lag})
        for loss in curves.LOSSES
        for lag in curves.LAGS[1:]
    ]
    asked += [
        (f"coupled instead of decoupled, lag {lag}", {"lag": lag, "loss": "decoupled"}, {"loss": "coupled"})
        for lag in curves.LAGS
    ]
    found = []
    for what, base, other in asked:
        if compared := pairs(runs, base=base, other=other):
            reward = difference(compared, curves.last_reward)
            found.append(f"| {what} | {reward.num_pairs} | {reward} | {_held_out(compared)} |")
    return found
