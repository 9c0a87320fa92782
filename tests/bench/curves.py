"""Learning curves over a grid of algorithms: its cells, their settings, what is kept of a run, and the page.

Own file: `learning_curves.py` starts the runs, this decides and draws. Rewards are raw means of a step's samples.
"""

import dataclasses
import io
import itertools
import json
import pathlib
import statistics
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

ESTIMATORS: Mapping[str, Sequence[str]] = {
    "grpo": ("algorithm.advantageEstimator=grpo",),
    # Its denominator is the longest answer that may be sampled: rollout.sampling.maxTokens of the example.
    "drgrpo": (
        "algorithm.advantageEstimator=drgrpo",
        "algorithm.loss.aggregation=Constant",
        'algorithm.loss.constantDenominator="8"',
    ),
    "rloo": ("algorithm.advantageEstimator=rloo",),
    "ppo": ("algorithm.advantageEstimator=ppo", "algorithm.critic={}"),
}
LAGS = (0, 1, 4)
# The clip band is centred on the trainer's policy before the step, or on the one that sampled.
LOSSES: Mapping[str, Sequence[str]] = {
    "decoupled": ("algorithm.loss.proximal=Recompute",),
    "coupled": ("algorithm.loss.proximal=Behavior",),
}
MAX_STEPS = 200
Series: TypeAlias = tuple[str, int, str, int]
# Of the example: samples before a mean counts, the goal, and how many steps the first and last figures are of.
WINDOW, TARGET, FIRST, LAST = 3, 0.5, 3, 5
_COLOURS = {0: "#3366cc", 1: "#dd7711", 4: "#2a9d5c"}
_OTHER_COLOUR = "#7b4fa3"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Cell:
    """One run. lag: spec.async.maxOffPolicySteps; loss: a key of LOSSES."""

    seed: int
    lag: int
    estimator: str
    loss: str
    steps: int

    @property
    def name(self) -> str:
        """Return a name for its folder."""
        return f"{self.estimator}-lag{self.lag}-{self.loss}-seed{self.seed}-{self.steps}steps"

    @property
    def series(self) -> Series:
        """Return what its line in the table is of: all but the seed."""
        return self.estimator, self.lag, self.loss, self.steps


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One step: mean raw reward, wall seconds since the step before, mean age of its groups in steps."""

    reward: float
    wall_s: float
    staleness: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A cell that was run. held_out: accuracy of the last version. Where: commit, machine and time of the run."""

    cell: Cell
    curve: tuple[Point, ...]
    held_out: float
    commit: str
    machine: str
    time: str


def grid(
    *, estimators: Iterable[str], lags: Iterable[int], losses: Iterable[str], seeds: Iterable[int], steps: int
) -> list[Cell]:
    """Return all cells, seed after seed, so that what was stopped early has whole seeds. Raises ValueError."""
    if not WINDOW <= steps <= MAX_STEPS:
        raise ValueError(f"steps is {steps}, which must be from {WINDOW} to {MAX_STEPS}")
    chosen = (tuple(seeds), tuple(lags), tuple(estimators), tuple(losses))
    for name, given, known in (("estimator", chosen[2], ESTIMATORS), ("loss", chosen[3], LOSSES)):
        if unknown := [each for each in given if each not in known]:
            raise ValueError(f"{name} {unknown[0]!r} is not one of {', '.join(known)}")
    if below := [lag for lag in chosen[1] if lag < 0]:
        raise ValueError(f"lag {below[0]} is below 0")
    return [
        Cell(seed=seed, lag=lag, estimator=estimator, loss=loss, steps=steps)
        for seed, lag, estimator, loss in itertools.product(*chosen)
    ]


def settings(cell: Cell) -> list[str]:
    """Return the `--set` values that make the addition example this cell. The last version alone is evaluated."""
    return [
        f"spec.{setting}"
        for setting in (
            f"maxSteps={cell.steps}",
            f"async.maxOffPolicySteps={cell.lag}",
            *ESTIMATORS[cell.estimator],
            *LOSSES[cell.loss],
            "checkpoint.everySteps=1000",
            "evaluation.beforeTraining=false",
            # Cells are compared at equal numbers of samples, and with those that are stored.
            "data.filterGroups.enabled=false",
            "algorithm.epochs=1",
            'trainer.optimizer.learningRate="1e-5"',
        )
    ]


def missing(cells: Iterable[Cell], runs: Iterable[Run]) -> list[Cell]:
    """Return the cells that no run is of, in order."""
    known = {run.cell for run in runs}
    return [cell for cell in cells if cell not in known]


def curve(history: Iterable[Mapping[str, object]]) -> tuple[Point, ...]:
    """Return the points of a run's history lines; a step that was repeated counts as it was last.

    The first step begins with the first sample: starting the engines is not a part of it.
    """
    by_step = {int(str(line["step"])): line for line in history if line["kind"] == "step"}
    lines = [line for _, line in sorted(by_step.items())]
    if not lines:
        raise ValueError("the history has no step")
    intervals = lines[0]["generate"]
    assert isinstance(intervals, list), "a step's line says when its groups were generated"
    ends = [_number(line, "finished_at") for line in lines]
    starts = [min(float(start) for start, _ in intervals), *ends]
    return tuple(
        Point(reward=_number(line, "reward_mean"), wall_s=end - start, staleness=_number(line, "staleness_mean"))
        for line, start, end in zip(lines, starts[:-1], ends, strict=True)
    )


def held_out(history: Iterable[Mapping[str, object]]) -> float:
    """Return the accuracy of the last evaluation. Raises ValueError without one."""
    found = [_number(line, "accuracy") for line in history if line["kind"] == "evaluation"]
    if not found:
        raise ValueError("the history has no evaluation")
    return found[-1]


def _number(line: Mapping[str, object], key: str) -> float:
    return float(str(line[key]))


def to_line(run: Run) -> str:
    """Return the line of the results file."""
    return json.dumps(dataclasses.asdict(run)) + "\n"


def from_line(line: str) -> Run:
    """Return a line's run; what `to_line` wrote comes back equal."""
    fields = json.loads(line)
    return Run(cell=Cell(**fields.pop("cell")), curve=tuple(Point(**point) for point in fields.pop("curve")), **fields)


def fill(cells: Iterable[Cell], results: pathlib.Path, *, run: Callable[[Cell], Run]) -> list[tuple[Cell, Exception]]:
    """Append a line to `results` after each cell, and return those whose run failed, with why. The others still run."""
    failed: list[tuple[Cell, Exception]] = []
    for cell in cells:
        try:
            done = run(cell)
        except (subprocess.SubprocessError, OSError, ValueError) as error:
            failed.append((cell, error))
            continue
        with results.open("a", encoding="utf-8") as lines:
            lines.write(to_line(done))
    return failed


def steps_to_target(rewards: Sequence[float], target: float = TARGET) -> int | None:
    """Return the first step at which the mean of the WINDOW steps up to it reaches the target, or None."""
    for end in range(WINDOW, len(rewards) + 1):
        if statistics.fmean(rewards[end - WINDOW : end]) >= target:
            return end
    return None


def first_reward(run: Run) -> float:
    """Return the mean reward of the first steps."""
    return statistics.fmean(point.reward for point in run.curve[:FIRST])


def last_reward(run: Run) -> float:
    """Return the mean reward of the last steps."""
    return statistics.fmean(point.reward for point in run.curve[-LAST:])


def estimators(runs: Sequence[Run]) -> list[str]:
    """Return the estimators that were run, in the order of ESTIMATORS."""
    return [name for name in ESTIMATORS if any(run.cell.estimator == name for run in runs)]


def page(runs: Sequence[Run], *, figure: str, answers: Sequence[str] = ()) -> str:
    """Return the Markdown page of all runs, which shows the picture in the file `figure`. answers: its last lines."""
    series = _series(runs)
    columns = (
        "estimator", "lag", "loss", "steps", "seeds", f"first {FIRST}", f"last {LAST}", "lowest to highest", "target",
        "held out", "age",
    )  # fmt: skip
    rows = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}", *(_row(*each) for each in series.items())]
    made = sorted({f"- {run.machine}; commit {run.commit}; {run.time[:10]}." for run in runs})
    steps = max(run.cell.steps for run in runs)
    return f"""# Learning curves
Few-shot addition (`crds/examples/addition-cpu.yaml`: SmolLM2-135M, 16 prompts of 8 samples a step) by
estimator, bound of staleness and loss.

    python -m tests.bench.learning_curves --seeds 0,1,2 --steps {steps}

runs what is missing in `docs/learning_curves.jsonl`, a line a run, and makes this page from it; it may be stopped and
started again.

- Lag is `async.maxOffPolicySteps`: the oldest token of a step may be that many versions behind; 0 is synchronous.
- Decoupled is `loss.proximal: Recompute` with weights truncated at 2; coupled is `Behavior`, PPO with two policies.
- Rewards are means of a step's raw rewards: of the first {FIRST} steps, and of the last {LAST} with the lowest and
  highest seed. Target: the first step at which the mean of {WINDOW} steps is {TARGET} or more, median of the seeds; -
  where a seed did not reach it. Held out: accuracy of the last version, greedy, on 200 other questions.
- Age is the mean, over groups and steps, of how many versions the oldest token was behind. The reward of a step is that
  of the versions that sampled it, so at lag 4 it is of weights some versions back; held out is of the last weights.
- A seed is a run: few of them show that an algorithm learns, and are too few to rank those that do. Runs shared the
  machine with others, so their seconds say nothing and are left out.

![Mean reward by step]({figure})

{chr(10).join(rows)}

Made on
{chr(10).join(made)}
""" + "".join(f"{line}\n" for line in ("", *answers) if answers)


def _series(runs: Sequence[Run]) -> dict[Series, list[Run]]:
    order = {name: place for place, name in enumerate((*ESTIMATORS, *LOSSES))}

    def key(run: Run) -> tuple[int, int, int, int, int]:
        cell = run.cell
        return order[cell.estimator], cell.lag, order[cell.loss], cell.steps, cell.seed

    ordered = sorted(runs, key=key)
    return {name: list(group) for name, group in itertools.groupby(ordered, key=lambda run: run.cell.series)}


def _row(name: Series, runs: Sequence[Run]) -> str:
    rewards = [[point.reward for point in run.curve] for run in runs]
    last = [last_reward(run) for run in runs]
    reached = [steps_to_target(each) for each in rewards]
    known = [step for step in reached if step is not None]
    target = f"{statistics.median(known):g}" if len(known) == len(reached) else "-"
    cells = [
        *name,
        len(runs),
        f"{statistics.fmean(map(first_reward, runs)):.2f}",
        f"{statistics.fmean(last):.2f}",
        f"{min(last):.2f} to {max(last):.2f}",
        target,
        f"{statistics.fmean(run.held_out for run in runs):.2f}",
        f"{statistics.fmean(point.staleness for run in runs for point in run.curve):.1f}",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def mean_curve(runs: Sequence[Run]) -> list[float]:
    """Return the mean over seeds of each step's reward, each the mean of up to WINDOW steps up to it."""
    length = min(len(run.curve) for run in runs)
    means = [statistics.fmean(run.curve[step].reward for run in runs) for step in range(length)]
    return [statistics.fmean(means[max(0, step + 1 - WINDOW) : step + 1]) for step in range(length)]


def svg(runs: Sequence[Run]) -> str:
    """Return the picture: a panel per estimator, a colour per lag, a dashed line for the coupled loss."""
    import matplotlib
    from matplotlib.figure import Figure

    series = _series(runs)
    names = estimators(runs)
    figure = Figure(figsize=(3.2 * len(names), 3.0), layout="constrained")
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for name, axes in zip(names, panels, strict=True):
        for (estimator, lag, loss, _), each in series.items():
            if estimator == name:
                means = mean_curve(each)
                style = "-" if loss == "decoupled" else "--"
                colour = _COLOURS.get(lag, _OTHER_COLOUR)
                axes.plot(range(1, len(means) + 1), means, style, color=colour, label=f"lag {lag}, {loss}")
        axes.set(title=name, xlabel="step", ylim=(0, 1))
        axes.grid(alpha=0.3)
    panels[0].set_ylabel(f"mean reward, {WINDOW} steps")
    panels[-1].legend(frameon=False, fontsize=7)
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "rljob", "font.size": 9}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
