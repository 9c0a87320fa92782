"""The page docs/learning.md, made from the stored runs alone. Pure."""

import statistics
from collections.abc import Sequence

from tests.bench import curves, paired
from tests.bench.learning import results, sides

TASKS = {
    "addition": "sums below 100; `exact`",
    "word sums": "a calculation, then `#### 47`; `gsm8k`, a tenth for the format alone",
    "spelling": "a word backward; reasoning-gym's `spell_backward`, a part for each letter in its place",
    "counting": "shapes among up to eight things, as `[2]`; `clevr_count_70k`",
    "guessing": "a number from 1 to 9 in three turns with hints; `crds/examples/guess_number.py`, 7 of 9 at best; all"
    " nine are trained, and asked in the end",
}
_TITLES = {
    "peer": "## TRL",
    "staleness": "## What do old samples cost?",
    "recipes": "## Recipes",
}


def text(runs: Sequence[results.Run]) -> str:
    """Return the page."""
    names = [task for task in TASKS if any(run.cell.task == task for run in runs)]
    sections = [line for group in sides.GROUPS for line in _section(group, runs, names)]
    return "\n".join([_HEAD, *_tasks(runs, names), *sections, *_made_on(runs)]) + "\n"


def _tasks(runs: Sequence[results.Run], names: Sequence[str]) -> list[str]:
    lines = ["## Tasks", "| task | what it is | first 3 steps | lag 0, held out | runs |", "|---|---|---|---|---|"]
    for name in names:
        those = [run for run in runs if (run.cell.task, run.cell.side) == (name, "lag 0")]
        figures = [_mean([run.first_reward for run in those]), _mean([run.held_out for run in those])]
        lines.append(f"| {name} | {TASKS[name]} | {' | '.join(figures)} | {len(those)} |")
    return [*lines, ""]


def _section(group: str, runs: Sequence[results.Run], names: Sequence[str]) -> list[str]:
    base = sides.BASES[group]
    rows = {name: _row(name, base, runs, names) for name, side in sides.SIDES.items() if side.is_in(group)}
    rows = {name: row for name, row in rows.items() if row and name != base}
    if not rows:
        return [_TITLES[group], _NO_PEER, ""] if group == "peer" else []
    return [
        _TITLES[group],
        _EXPLAINED[group],
        "",
        f"| less {base} | {' | '.join(names)} | all tasks | sampled | whole curve | pairs | distance |",
        f"|{'---|' * (len(names) + 6)}",
        *rows.values(),
        "",
        *(f"- {name}: {sides.SIDES[name].what}." for name in (base, *rows)),
        "",
        *(_to_target(runs, names) if group == "peer" else []),
        *_in_words([name for name in rows if sides.SIDES[name].is_default], base, runs, names),
    ]


def _in_words(defaults: Sequence[str], base: str, runs: Sequence[results.Run], names: Sequence[str]) -> list[str]:
    """Return what the defaults cost over all tasks, held out."""
    lines = []
    for side in defaults:
        found = paired.pooled(list(results.by_task(runs, side=side, base_side=base, tasks=names).values()))
        lines.append(f"- {side} {found.in_errors} {base}: {found.mean:+.3f} over all tasks.")
    return ["The defaults, held out:", *lines, ""] if lines else []


def _to_target(runs: Sequence[results.Run], names: Sequence[str]) -> list[str]:
    """Return a table of what TRL takes to a target against ours, over the seeds and base models that both have."""
    lines = []
    for name in names:
        ours, theirs = (
            {(run.cell.seed, run.base): run for run in runs if (run.cell.task, run.cell.side) == (name, side)}
            for side in (sides.BASES["staleness"], sides.PEER)
        )
        if not (both := sorted(ours.keys() & theirs.keys())):
            continue
        target = statistics.fmean(ours[key].halfway for key in both)
        seconds = [_mean_of_all([side[key].seconds_to(target) for key in both]) for side in (ours, theirs)]
        cells = ["-" if each is None else f"{each:.1f}" for each in seconds]
        share = f"{seconds[0] / seconds[1]:.2f}" if seconds[0] and seconds[1] else "-"
        lines.append(f"| {name} | {target:.2f} | {' | '.join(cells)} | {share} |")
    return [*_TARGET.splitlines(), *lines, ""]


def _mean_of_all(values: Sequence[float | None]) -> float | None:
    """Return the mean, None where one is missing."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else None


def _row(side: str, base: str, runs: Sequence[results.Run], names: Sequence[str]) -> str:
    ends = results.by_task(runs, side=side, base_side=base, tasks=names)
    if not ends:
        return ""
    samples = results.by_task(runs, side=side, base_side=base, tasks=names, name="sampled")
    areas = results.by_task(runs, side=side, base_side=base, tasks=names, name="area")
    cells = [str(ends.get(name, "-")) for name in names]
    pooled = [paired.pooled(list(part.values())) for part in (ends, samples, areas)]
    cells += [*map(str, pooled), str(pooled[0].num_pairs)]
    gap = _mean([run.gap for run in runs if run.cell.side == side])
    return f"| {side} | {' | '.join(cells)} | {gap} |"


def _mean(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.2f}" if values else "-"


def _made_on(runs: Sequence[results.Run]) -> list[str]:
    origins = sorted({f"- {run.machine}; commit {run.commit}; {run.time[:10]}; base model {run.base}." for run in runs})
    seconds = statistics.median(run.cpu_s for run in runs)
    return ["Made on", *origins, "", f"A run takes {seconds:.0f} s of one core (median of {len(runs)})."]


_EXPLAINED = {
    "staleness": """
Each side less the synchronous one (lag 0) on the same questions in the same order with the same random numbers: greedy
held-out score of the last version, mean over seeds with the standard error of the mean, in brackets what is less than
two of them. *All tasks* counts every task alike. *Sampled*: the same at temperature 1 instead of greedy. *Whole curve*:
of the mean reward over all steps, where being behind shows by itself. *Distance*: mean absolute difference of a token's
log-probabilities by the policy that trains and by the one that sampled. *Pairs*: of runs, over all tasks. The error of
two or three pairs is itself rough, and a task that every side learns to its best shows no cost.""".lstrip(),
    "peer": """
Ours with the defaults at each lag less another trainer, synchronous, on the same questions: our graders score its
samples and its last weights. What the columns are is said below.""".lstrip(),
    "recipes": (
        "Algorithms of `crds/examples/recipes` ([recipes](recipes.md)), four updates a step, no lag; each less GRPO."
    ),
}
_NO_PEER = "Not measured here: no run of it is stored. `--trl` with the Python of an environment that has TRL runs it."
_TARGET = f"""
Seconds of one core, sampling and updates, until the mean reward of {curves.WINDOW} steps is halfway from ours of the
first steps to ours of the last ones; mean over seeds, - where a seed does not reach it.

| task | target | ours | TRL | ours / TRL |
|---|---|---|---|---|"""
_HEAD = """# Learning per sample
<!-- Written by `python -m tests.bench.learning --max-runs 0` from docs/learning.jsonl. -->
Which setting learns as well as another from the same number of samples. Sides of a pair have the same base model,
questions in the same order, and random numbers; what differs is the setting. So a difference of pairs is far less noisy
than a difference of means.

    python -m tests.bench.learning --seeds 0,1,2,3,4

runs what is missing in `docs/learning.jsonl`, a line a run, and makes this page; it may be stopped and started again.

A run takes seconds because the policy is small: a Llama of two layers that has learned to answer all tasks, mostly by
habits that are wrong. *Real* is everything from the manifest to the optimizer: graders and environments, advantages,
packing, loss, weights and masks, DeepSpeed. *Played* are the engine (plain sampling instead of vLLM) and time: at lag k
every token of a step is exactly k versions old. Weights are float32 on both sides. Whole runs with vLLM, bf16 and real
ages are in [learning_curves.md](learning_curves.md), seconds against TRL in [comparison.md](comparison.md).
"""
