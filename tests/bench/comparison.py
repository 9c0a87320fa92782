"""The picture of two sides that learn the same task: mean reward over wall time, a panel per seed."""

import io
import statistics
from collections.abc import Mapping, Sequence

Steps = Sequence[Mapping[str, float]]
_SIDES = {"ours": ("rljob", "C0"), "peer": ("TRL", "C1")}


def points(steps: Steps, *, window: int) -> tuple[list[float], list[float]]:
    """Return minutes since the first step began and the mean reward of the last `window` steps, one pair a step.

    steps: `wall_s` and `reward` of each. Raises ValueError if `window` is below 1.
    """
    if window < 1:
        raise ValueError(f"need {window=} to be at least 1")
    minutes, means, elapsed = [], [], 0.0
    for index, step in enumerate(steps):
        elapsed += step["wall_s"] / 60
        minutes.append(elapsed)
        means.append(statistics.fmean(each["reward"] for each in steps[max(0, index + 1 - window) : index + 1]))
    return minutes, means


def svg(curves: Mapping[int, Mapping[str, Steps]], *, window: int, target: float) -> str:
    """Return the picture; `curves`: the steps of both sides by seed. Time is logarithmic: the sides differ widely."""
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4 * len(curves), 3.0), layout="constrained")
    panels = figure.subplots(1, len(curves), sharey=True, squeeze=False)[0]
    for (seed, sides), axes in zip(curves.items(), panels, strict=True):
        for side, (name, colour) in _SIDES.items():
            axes.plot(*points(sides[side], window=window), color=colour, label=name)
        axes.axhline(target, color="0.6", linewidth=0.8, linestyle=":")
        axes.set(title=f"seed {seed}", xlabel="minutes", xscale="log", ylim=(0, 1))
        axes.grid(alpha=0.3)
    panels[0].set_ylabel(f"mean reward, {window} steps")
    panels[-1].legend(frameon=False)
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "rljob", "font.size": 9}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
