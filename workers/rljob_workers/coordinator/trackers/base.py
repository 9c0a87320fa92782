"""What an experiment tracker is: a class that gets the metrics of a run, point by point, in a process of its own.

    history.jsonl --> follower.py (a process per tracker) --> Tracker.log ... log, flush --> sequence number on disk

The class of a built-in type is `TRACKER` of the module of that name in this package; that of `plugin:<name>` is the
object of an entry point in group `rljob.trackers`. docs/contributing.md has the steps.
"""

import abc
import dataclasses
import importlib
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from rljob_api import enums, errors, plugins, process_config
from rljob_api.manifest import reward_options, trackers


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Which run is tracked. uid: stable over restarts, so an id for a run of the service; spec: the manifest's, with
    defaults and without pod settings; folder: a durable one of this tracker alone, which exists.
    """

    namespace: str
    name: str
    uid: str
    spec: Mapping[str, object]
    folder: pathlib.Path


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Metrics of one trainer step, or of one evaluation: of the weights after `step` steps, 0 before training.

    at: unix seconds. metrics: finite or not, by the names that `point` gives them; seconds end in `_s`.
    """

    kind: Literal["step", "evaluation"]
    step: int
    at: float
    metrics: Mapping[str, float]


class Tracker(abc.ABC):
    """A tracker. Calls come one at a time from one thread, in the order of the history; any may block or raise.

    A call that raises, or takes more than `follower.CALL_S` seconds, ends the process; a new one is made after a delay
    and gets everything since the last `flush` that returned. So each point comes at least once: give the service an id
    made of the run's uid, and log under the point's step. Retrying is not this class's business; skipping what the
    service will never take is. Texts of exceptions are not logged, since they may hold keys, except those of
    `rljob_api.errors`.
    """

    options: ClassVar[type[trackers.Options]] = trackers.Options

    @abc.abstractmethod
    def __init__(self, run: Run, config: Any) -> None:
        """Connect. config: what the manifest says, as an instance of the class's `options`."""

    @abc.abstractmethod
    def log(self, point: Point) -> None:
        """Take a point. Steps rise within trainer steps and within evaluations; an evaluation comes after its step."""

    @abc.abstractmethod
    def rewind(self, step: int) -> None:
        """The trainer fell back to a checkpoint: steps after `step` are trained again, and come again.

        Evaluations of the weights after them do not.
        """

    @abc.abstractmethod
    def flush(self) -> None:
        """Return once everything that was logged is stored so that it survives the death of this process."""

    @abc.abstractmethod
    def close(self) -> None:
        """The coordinator ends, after the last point and `flush`; the run may continue later."""


def find(spec: trackers.TrackerSpec) -> type[Tracker]:
    """Return the class of a tracker; only its module is imported, and of a built-in type none of its library.

    Raises ManifestError for a library that is not installed, and a plugin that is not installed, does not import, is no
    subclass of Tracker or refuses the options.
    """
    if problem := trackers.missing_library(spec):
        raise errors.ManifestError(problem)
    field = f"spec.observability.trackers[{spec.name}]"
    if plugins.plugin_name(spec.type):
        tracker = plugins.load(plugins.TRACKERS, spec.type, field=f"{field}.type")
    else:
        tracker = importlib.import_module(f"{__package__}.{spec.type}").TRACKER
    if not (isinstance(tracker, type) and issubclass(tracker, Tracker)):
        raise errors.ManifestError(f"{field}.type is {spec.type!r}, which is not a subclass of {__name__}.Tracker")
    problems = [
        f"{field}.config.{path} is {value!r}, but {reason}"
        for path, value, reason in reward_options.problems(spec.type, spec.config, model=tracker.options)
    ]
    if problems:
        raise errors.ManifestError(*problems)
    return tracker


def folder(config: process_config.CoordinatorConfig, name: str) -> pathlib.Path:
    """Return the folder of a tracker in the state directory."""
    return pathlib.Path(config.state_dir) / "trackers" / name


def make(config: process_config.CoordinatorConfig, spec: trackers.TrackerSpec) -> Tracker:
    """Return a tracker of the run. Raises ManifestError as `find` does, and what its constructor raises."""
    kind, place = find(spec), folder(config, spec.name)
    place.mkdir(parents=True, exist_ok=True)
    run = Run(
        namespace=config.job.namespace,
        name=config.job.name,
        uid=config.job.uid,
        spec=config.model_dump(mode="json", by_alias=True, include={"spec"})["spec"],
        folder=place,
    )
    return kind(run, kind.options.model_validate(spec.config))


# Of a step's line, what is not measured of the step.
_NO_METRICS = frozenset({"seq", "kind", "at", "step", "attempt"})


def point(line: Mapping[str, Any]) -> Point | None:
    """Return the metrics of a line of history.jsonl, None for a line of another kind than steps and evaluations.

    A step's numbers have the name `train/<key>`, or `train/<group>/<key>` of a group of numbers, unless their name has
    a slash already, as those in `stats`, which are the trainer's.
    """
    if line["kind"] == "evaluation_metrics":
        return Point(kind="evaluation", step=line["step"], at=line["at"], metrics=dict(_numbers(line["metrics"])))
    if line["kind"] == "step":
        own = {key: value for key, value in line.items() if key not in _NO_METRICS and not key.endswith("_at")}
        flat = {**_numbers_of_groups(own), **dict(_numbers(own)), **dict(_numbers(own.get("stats", {})))}
        metrics = {name if "/" in name else f"train/{name}": value for name, value in flat.items()}
        return Point(kind="step", step=line["step"], at=line["at"], metrics=metrics)
    return None


def rewound_to(line: Mapping[str, Any]) -> int | None:
    """Return the step that a line of the history says the trainer fell back to, None if it says nothing of that."""
    fell = line["kind"] == "restart" and line.get("role") == enums.Role.TRAINER
    return int(line["resume_step"]) if fell else None


def _numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for key, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield key, float(value)


def _numbers_of_groups(values: Mapping[str, Any]) -> dict[str, float]:
    groups = {key: value for key, value in values.items() if key != "stats" and isinstance(value, Mapping)}
    return {f"train/{key}/{name}": number for key, group in groups.items() for name, number in _numbers(group)}
