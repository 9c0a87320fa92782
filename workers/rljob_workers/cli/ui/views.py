"""What the page shows, as JSON: the runs below a folder, one run with its curves, and trajectories.

Only reads. A run directory is found by its name in a list of those that are there, never by a path that was asked for.
"""

import dataclasses
import itertools
import math
import pathlib
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from rljob_api import enums, errors
from rljob_workers.cli import inspect, trajectories, why_text
from rljob_workers.local.run import live
from rljob_workers.local.rundir import dumps, group_facts, history, layout

JsonObject = dict[str, object]
Points = list[tuple[int, float]]
# Text of a token, and if it was sampled its log-probability in nats and the weight version.
Token = tuple[str, float | None, int | None]

# Of one text of a trajectory, characters; the command line shows all.
MOST_CHARS = 20_000
# Trajectories of one answer, and how many may be passed over to get to them.
MOST_ROWS, MOST_PASSED = 50, 100_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A curve for each series over steps. unit: of the values, "share" for 0..1."""

    title: str
    unit: str
    series: Mapping[str, Points]

    def as_json(self) -> JsonObject:
        return {"title": self.title, "unit": self.unit, "series": dict(self.series)}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryQuery:
    """Which trajectories: those from number `offset` on that the filter lets through."""

    row_filter: trajectories.RowFilter
    versions: Sequence[int] = ()
    evaluation: bool = False
    offset: int = 0


# Charts of the trainer's statistics: title, unit, and the statistic of each curve.
_STATISTICS: Sequence[tuple[str, str, Mapping[str, enums.StepStat]]] = (
    ("Entropy", "nats", {"policy": enums.StepStat.ENTROPY}),
    ("Coefficient of the entropy bonus", "", {"adapted": enums.StepStat.ENTROPY_COEF}),
    (
        "KL divergence",
        "nats",
        {
            "of an update": enums.StepStat.APPROX_KL,
            "from the reference model": enums.StepStat.REF_KL,
            "to the teacher": enums.StepStat.TEACHER_KL,
        },
    ),
    ("Gradient norm", "", {"policy": enums.StepStat.GRAD_NORM, "critic": enums.StepStat.CRITIC_GRAD_NORM}),
    ("Clipped tokens", "share", {"low": enums.StepStat.CLIP_LOW, "high": enums.StepStat.CLIP_HIGH}),
    ("Effective sample size of importance weights", "share", {"policy": enums.StepStat.BEHAVIOR_ESS}),
    ("Learning rate", "", {"policy": enums.StepStat.LEARNING_RATE}),
)


def charts(run: history.Run) -> list[Chart]:
    """Return the curves of a run; without steps there are none, and what is no number is left out. Pure."""

    def curve(values: Iterable[tuple[int, float | None]]) -> Points:
        return [(step, value) for step, value in values if value is not None and math.isfinite(value)]

    steps = run.steps
    suites = {
        suite: curve((result.step, result.accuracy) for result in run.evaluations if result.suite == suite)
        for suite in sorted({result.suite for result in run.evaluations})
    }
    phases = {
        name: curve((step.step, step.phases_s.get(name)) for step in steps)
        for name in history.PHASES
        if any(step.phases_s.get(name) for step in steps)
    }
    rewards = curve((step.step, step.reward_mean) for step in steps)
    trained = curve((step.step, step.trained_reward_mean) for step in steps)
    all_charts = [
        Chart(
            title="Reward",
            unit="",
            series={
                "mean": rewards,
                **({"mean of trained answers": trained} if trained != rewards else {}),
                "standard deviation": curve((step.step, step.reward_std) for step in run.rl_steps),
            },
        ),
        Chart(
            title="Loss of the supervised steps",
            unit="nats a token",
            series={"examples": curve((s.step, s.stats.get(enums.StepStat.LOSS)) for s in run.sft_steps)},
        ),
        Chart(title="Held-out accuracy", unit="share", series=suites),
        Chart(
            title="Waiting",
            unit="share",
            series={
                "trainer": curve((step.step, step.wait_share) for step in steps if step.total_s > 0),
                "rollouts": curve((step.step, step.rollout_wait_share) for step in steps),
            },
        ),
        Chart(title="Step time by phase", unit="s", series=phases),
        Chart(
            title="Age of tokens", unit="steps", series={"mean": curve((s.step, s.staleness_token_mean) for s in steps)}
        ),
        Chart(
            title="Log-probability gap of engine and trainer",
            unit="nats",
            series={"mean": curve((step.step, step.logprob_gap) for step in steps)},
        ),
        Chart(
            title="Tokens of a step",
            unit="tokens",
            series={
                "generated": curve((step.step, float(step.tokens_generated)) for step in steps),
                "trained": curve((step.step, float(step.tokens_trained)) for step in steps),
            },
        ),
    ]
    all_charts += [
        Chart(
            title=title,
            unit=unit,
            series={
                name: curve((step.step, step.stats.get(statistic)) for step in steps)
                for name, statistic in statistics_.items()
            },
        )
        for title, unit, statistics_ in _STATISTICS
    ]
    drawn = [
        dataclasses.replace(chart, series={name: points for name, points in chart.series.items() if points})
        for chart in all_charts
    ]
    return [chart for chart in drawn if chart.series]


def row_view(row: dumps.Row, facts: group_facts.Facts) -> JsonObject:
    """Return a trajectory as it is shown: its parts with their texts, cut at `MOST_CHARS`, and what became of it."""
    fields = trajectories.row_fields(row, facts)
    left_out = ("prompt", "completion", "segments", "tokens")
    tokens = _tokens(row)
    return {
        **{name: value for name, value in fields.items() if name not in left_out},
        "parts": [_part_view(part, itertools.islice(tokens, part.len)) for part in row.parts],
    }


def _part_view(part: dumps.Part, tokens: Iterable[Token]) -> JsonObject:
    listed = list(tokens)
    sizes = itertools.accumulate(len(text) for text, _, _ in listed)
    return {
        "role": part.role,
        "tokens": part.len,
        "text": part.text[:MOST_CHARS],
        "characters_left_out": max(0, len(part.text) - MOST_CHARS),
        "by_token": [token for token, size in zip(listed, sizes, strict=True) if size <= MOST_CHARS]
        if part.role == "gen"
        else [],
    }


def _tokens(row: dumps.Row) -> Iterator[Token]:
    """Yield the tokens of a row from the first on; those of the prompt have no text of their own."""
    if row.tokens is None:
        return
    yield from itertools.repeat(("", None, None), row.prompt_len)
    versions = itertools.chain.from_iterable(itertools.repeat(version, count) for version, count in row.version_rle)
    for text, logprob in zip(row.tokens.texts, row.tokens.logprobs, strict=True):
        yield text, logprob, None if logprob is None else next(versions, None)


def plain(value: object) -> object:
    """Return a value that JSON has: None in place of what is no finite number. Pure."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
    return value


class Source(Protocol):
    """Where runs are looked up."""

    def listed(self) -> JsonObject:
        """Return all runs, the one that changed last first."""

    def run(self, name: str) -> JsonObject:
        """Return one run with its curves. Raises RLJobError if there is no such run."""

    def trajectories(self, name: str, query: TrajectoryQuery) -> JsonObject:
        """Return trajectories of a run. Raises RLJobError if they cannot be read."""


class Runs:
    """The runs below a folder. What was read of a history that has not changed is kept."""

    def __init__(self, folder: pathlib.Path) -> None:
        """The folder need not exist yet."""
        self.folder = folder
        self._histories: dict[pathlib.Path, tuple[tuple[int, int], history.Run]] = {}

    def find(self, name: str) -> layout.RunDir:
        """Return the run of a name. Raises DataError if it is not one of those that are there."""
        for directory in self._directories():
            if directory.path.name == name:
                return directory
        raise errors.DataError(f"there is no run {name[:100]!r} below {self.folder}")

    def listed(self) -> JsonObject:
        """Return all runs, the one that changed last first."""
        rows = [self._summary(directory) for directory in self._directories()]
        return {"folder": str(self.folder), "runs": sorted(rows, key=lambda row: str(row["changed_at"]), reverse=True)}

    def run(self, name: str) -> JsonObject:
        """Return one run: its summary, why it waits, and its curves. Raises DataError if there is no such run."""
        directory = self.find(name)
        summary, now = self._summary(directory), time.time()
        account = inspect.account(
            directory,
            live.ask(directory) if summary["state"] == "running" else None,
            states=live.states(directory),
            events=(),
            now=now,
        )
        run = self._history(directory)
        return {
            **summary,
            "why": list(why_text.lines(account, now)),
            "charts": [chart.as_json() for chart in charts(run)],
            "checkpoints": list(run.checkpoints),
            "trajectories": dict(run.trajectories),
            "dumps": [kind for kind in (dumps.TRAINING, dumps.EVALUATION) if (directory.dumps / kind).is_dir()],
        }

    def trajectories(self, name: str, query: TrajectoryQuery) -> JsonObject:
        """Return trajectories, newest weights first, and where those after them begin (None: there are none).

        Raises DataError if there is no such run, LedgerError if its ledger cannot be read.
        """
        directory = self.find(name)
        ledger, unreadable = group_facts.Ledger(directory.state), dumps.Unreadable()
        kind = dumps.EVALUATION if query.evaluation else dumps.TRAINING
        try:
            rows = dumps.rows(directory.dumps, kind=kind, unreadable=unreadable, versions=query.versions)
            matching = (row for row in rows if query.row_filter.matches(row, ledger.facts))
            chosen = list(itertools.islice(matching, query.offset, query.offset + MOST_ROWS + 1))
            shown = [row_view(row, ledger.facts(row.group_id)) for row in chosen[:MOST_ROWS]]
        finally:
            ledger.close()
        more = query.offset + MOST_ROWS if len(chosen) > MOST_ROWS else None
        return {"rows": shown, "next": more, "unreadable": unreadable.count}

    def _directories(self) -> Iterator[layout.RunDir]:
        # A run directory itself is a folder with one run.
        if (self.folder / layout.IDENTITY).is_file():
            yield layout.RunDir(self.folder)
        for path in sorted(self.folder.glob(f"*/{layout.IDENTITY}")):
            yield layout.RunDir(path.parent)

    def _summary(self, directory: layout.RunDir) -> JsonObject:
        try:
            identity = directory.identity()
        except errors.ManifestError as error:
            return {"name": directory.path.name, "state": "unreadable", "problem": str(error), "changed_at": ""}
        run = self._history(directory)
        running, finished = live.is_running(directory), identity is not None and identity.finished
        scores = [result.accuracy for result in run.evaluations if result.step == run.evaluations[-1].step]
        return {
            "name": directory.path.name,
            "job": "" if identity is None else identity.name,
            "state": "running" if running else "finished" if finished else "stopped",
            "step": run.steps[-1].step if run.steps else 0,
            "max_steps": None if identity is None else identity.spec.get("maxSteps"),
            "reward": run.steps[-1].reward_mean if run.steps else None,
            "held_out": statistics.fmean(scores) if scores else None,
            "changed_at": _changed_at(directory),
        }

    def _history(self, directory: layout.RunDir) -> history.Run:
        try:
            stat = directory.history.stat()
        except FileNotFoundError:
            return history.Run()
        key = (stat.st_mtime_ns, stat.st_size)
        cached = self._histories.get(directory.path)
        if cached is None or cached[0] != key:
            cached = self._histories[directory.path] = (key, history.read(directory.history))
        return cached[1]


def _changed_at(directory: layout.RunDir) -> str:
    """Return when a run changed last, in UTC as ISO 8601, so that texts sort as times."""
    times = [path.stat().st_mtime for path in (directory.history, directory.journal) if path.exists()]
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(max(times))) if times else ""
