"""The curves of the report as SVG. The only importer of matplotlib; figures are made without its process-wide state."""

import base64
import io
from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rljob_api import enums
from rljob_workers.local.rundir import history, intervals

_SIZE_INCHES = (8.0, 2.7)
_BLUE, _ORANGE, _GREEN, _RED, _GREY, _PURPLE = "#3366cc", "#dd7711", "#2a9d5c", "#c0392b", "#9aa0a6", "#7b4fa3"
_PHASE_COLOURS = {
    "wait": _GREY,
    "proximal": _PURPLE,
    "forward_backward": _BLUE,
    "optimizer": _GREEN,
    "publish": _ORANGE,
    "checkpoint": _RED,
}


def supervised_loss(steps: Sequence[history.Step]) -> str:
    """Loss of the supervised steps."""
    figure, axes = _axes("step", "nats a token")
    points = [(step.step, step.stats[enums.StepStat.LOSS]) for step in steps if enums.StepStat.LOSS in step.stats]
    axes.plot([x for x, _ in points], [y for _, y in points], color=_GREEN, marker=".")
    return _image(figure, "loss of the supervised steps")


def reward(steps: Sequence[history.Step]) -> str:
    """Mean reward per step that has one, with one standard deviation around it."""
    figure, axes = _axes("step", "reward")
    points = [(step.step, step.reward_mean, step.reward_std) for step in steps if step.reward_mean is not None]
    x, mean, spread = ([point[place] for point in points] for place in range(3))
    low = [m - s for m, s in zip(mean, spread, strict=True)]
    high = [m + s for m, s in zip(mean, spread, strict=True)]
    axes.fill_between(x, low, high, color=_BLUE, alpha=0.15, linewidth=0, label="1 standard deviation")
    axes.plot(x, mean, color=_BLUE, marker=".", label="mean")
    axes.legend(frameon=False)
    return _image(figure, "reward per step")


def evaluation(results: Sequence[history.Evaluation]) -> str:
    """Accuracy by step, one line per suite."""
    figure, axes = _axes("step", "accuracy")
    for suite in sorted({result.suite for result in results}):
        points = sorted((result.step, result.accuracy) for result in results if result.suite == suite)
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o", label=suite)
    axes.set_ylim(0, 1)
    axes.legend(frameon=False)
    return _image(figure, "evaluation by step")


def staleness_histogram(histogram: Mapping[str, int]) -> str:
    """Consumed groups by age."""
    figure, axes = _axes("age of the oldest token, steps", "groups")
    axes.bar(list(histogram), list(histogram.values()), color=_BLUE, width=0.6)
    return _image(figure, "staleness histogram")


def staleness_by_step(steps: Sequence[history.Step]) -> str:
    """Oldest and mean age per step."""
    figure, axes = _axes("step", "age, steps")
    x = [step.step for step in steps]
    axes.plot(x, [max(step.staleness, default=0) for step in steps], color=_ORANGE, marker=".", label="oldest group")
    axes.plot(x, [step.staleness_token_mean for step in steps], color=_BLUE, marker=".", label="mean over tokens")
    axes.legend(frameon=False)
    return _image(figure, "staleness by step")


def wait_shares(steps: Sequence[history.Step]) -> str:
    """Share of time lost waiting, by step."""
    figure, axes = _axes("step", "share of time")
    x = [step.step for step in steps]
    axes.plot(x, [step.wait_share for step in steps], color=_ORANGE, marker=".", label="trainer waits")
    points = [(step.step, step.rollout_wait_share) for step in steps if step.rollout_wait_share is not None]
    axes.plot([a for a, _ in points], [b for _, b in points], color=_BLUE, marker=".", label="rollouts wait")
    axes.set_ylim(0, 1)
    axes.legend(frameon=False)
    return _image(figure, "wait shares by step")


def phases(steps: Sequence[history.Step]) -> str:
    """Where the seconds of a step go, stacked."""
    figure, axes = _axes("step", "seconds")
    x, bottom = [step.step for step in steps], [0.0] * len(steps)
    for phase, colour in _PHASE_COLOURS.items():
        heights = [step.phases_s.get(phase, 0.0) for step in steps]
        if any(heights):
            axes.bar(x, heights, bottom=bottom, color=colour, width=0.8, label=phase.replace("_", " + "))
            bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
    # Above the bars, which fill the whole height.
    axes.legend(frameon=False, ncols=len(_PHASE_COLOURS), loc="lower left", bbox_to_anchor=(0, 1))
    return _image(figure, "step time by phase")


def timeline(*, training: Sequence[intervals.Span], generating: Sequence[intervals.Span]) -> str:
    """When the trainer computed and when rollouts generated."""
    figure, axes = _axes("seconds since the first generation", "")
    begin = min((span[0] for span in [*training, *generating]), default=0.0)
    for row, (spans, colour) in enumerate(((training, _ORANGE), (generating, _BLUE))):
        axes.broken_barh([(a - begin, b - a) for a, b in spans], (row - 0.35, 0.7), facecolors=colour)
    axes.set_yticks([0, 1], ["trainer computes", "rollouts generate"])
    axes.grid(visible=False, axis="y")
    return _image(figure, "overlap of training and generation")


def weight_syncs(syncs: Sequence[history.Sync]) -> str:
    """Pause and whole duration of each weight update."""
    figure, axes = _axes("weight version", "seconds")
    axes.plot([s.version for s in syncs], [s.total_s for s in syncs], ".", color=_BLUE, label="whole update")
    axes.plot([s.version for s in syncs], [s.pause_s for s in syncs], ".", color=_RED, label="generation paused")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return _image(figure, "weight updates")


def logprob_gap(steps: Sequence[history.Step]) -> str:
    """Mean absolute log-probability difference, engine against trainer."""
    figure, axes = _axes("step", "nats")
    points = [(step.step, step.logprob_gap) for step in steps if step.logprob_gap is not None]
    axes.plot([x for x, _ in points], [y for _, y in points], color=_PURPLE, marker=".")
    axes.set_ylim(bottom=0)
    return _image(figure, "log-probability gap by step")


def tokens(steps: Sequence[history.Step]) -> str:
    """Generated and trained tokens per step."""
    figure, axes = _axes("step", "tokens")
    x = [step.step for step in steps]
    axes.plot(x, [step.tokens_generated for step in steps], color=_BLUE, marker=".", label="generated")
    axes.plot(x, [step.tokens_trained for step in steps], color=_ORANGE, marker=".", label="trained")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return _image(figure, "tokens per step")


def memory(peaks: Mapping[str, int]) -> str:
    """Peak memory by role."""
    figure, axes = _axes("GB", "")
    names = list(peaks)[::-1]
    axes.barh(names, [peaks[name] / 1e9 for name in names], color=_GREEN, height=0.6)
    return _image(figure, "peak memory by role")


def _axes(x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(visible=True, color="#e4e7eb", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _image(figure: Figure, alt: str) -> str:
    """Return an <img> with the SVG inside, so that the ids of two charts cannot clash."""
    buffer = io.BytesIO()
    # A fixed salt and no date: the same run renders to the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": "rljob", "svg.fonttype": "path", "font.size": 9}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f'<img alt="{alt}" src="data:image/svg+xml;base64,{data}">'
