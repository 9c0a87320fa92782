"""What runs of learning curves say: whether each estimator learns, and what staleness and the coupled loss cost. Pure.

A cost is the mean difference of pairs of runs that are alike but for one thing, seed included, with its standard error.
"""

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from tests.bench import curves, paired

Pairs: TypeAlias = Sequence[tuple[curves.Run, curves.Run]]
# A gain of the mean reward that is not an accident of which prompts a step had: their means of one run differ by less.
LEARNT = 0.1


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


def difference(compared: Pairs, of: Callable[[curves.Run], float]) -> paired.Difference:
    """Return the mean of `of` over the others less that of the bases. Raises ValueError without a pair."""
    return paired.difference([of(other) - of(base) for base, other in compared])


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


def _held_out(compared: Pairs) -> paired.Difference:
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
