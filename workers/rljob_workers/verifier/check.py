"""`rljob-verifier --check`: can the rewards be built, and can each record of the sources be graded by its own?"""

import collections
import dataclasses
import pathlib
from collections.abc import Iterator, Sequence

from rljob_api import errors, roles, types
from rljob_workers.data import record_task, records
from rljob_workers.verifier import routing, rubric, service
from rljob_workers.verifier.graders import protocol


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """A source of records and the evaluation suite that it is, "" in training."""

    source: roles.DataSourceConfig
    suite: str = ""


def problems(config: roles.VerifierConfig, sources: Sequence[Graded]) -> list[str]:
    """Return one sentence per problem; a record's names file and line."""
    try:
        graders = service.make_graders(config)
        for reward, grader in zip(config.rewards, graders, strict=True):
            if ":" in reward.type:
                # Its module is imported here, in a program of its own, and later only in grading workers.
                grader.warm()
    except errors.ManifestError as error:
        return list(error.problems)
    except errors.SandboxError as error:
        return [str(error)]
    return [problem for graded in sources for problem in _of_source(graded, config.rewards, graders)]


def warnings(config: roles.VerifierConfig, sources: Sequence[Graded]) -> list[str]:
    """Return one sentence per source and reward that cannot read some golds, and per source and task that its records
    do not name; `problems` found nothing before.
    """
    graders = service.make_graders(config)
    return [sentence for graded in sources for sentence in _warnings_of_source(graded, config.rewards, graders)]


def _warnings_of_source(
    graded: Graded, rewards: Sequence[roles.GraderConfig], graders: Sequence[protocol.Grader]
) -> Iterator[str]:
    loaded, _ = records.inspect_source(graded.source)
    indexes = rubric.chosen(rewards, graded.suite)
    for index in indexes:
        grader = graders[index]
        if isinstance(grader, protocol.ReadsGolds):
            own = [one for one in loaded.records if index in routing.graded_by(rewards, indexes, one.columns)]
            if count := sum(len(grader.unread_golds(record.columns)) for record in own):
                yield (
                    f"source {graded.source.name!r}: {count} golds are nothing that reward {rewards[index].name!r} can"
                    " read; they match as text only"
                )
    if routing.by_task(rewards, indexes):
        for task, count in _without_task(loaded.records).items():
            unnamed = f"{count} records name no {record_task.TASK!r}"
            yield f"source {graded.source.name!r}: {unnamed}; they are graded as {task}"


def _without_task(loaded: Sequence[types.PromptRecord]) -> collections.Counter[str]:
    """Return how many records name no task, by the task that they are taken to have."""
    return collections.Counter(
        record_task.assumed(record.columns) for record in loaded if record_task.TASK not in record.columns
    )


def sources_of(config: roles.CoordinatorConfig) -> list[Graded]:
    """Return all sources of a run: training, then evaluation."""
    training = [Graded(source=source) for source in config.data.train]
    return training + [Graded(source=one.source, suite=one.source.name) for one in config.evaluation.suites]


def read_sources(path: pathlib.Path) -> list[Graded]:
    """Return the sources that a coordinator's config names."""
    return sources_of(roles.CoordinatorConfig.model_validate_json(path.read_bytes()))


def _of_source(
    graded: Graded, rewards: Sequence[roles.GraderConfig], graders: Sequence[protocol.Grader]
) -> Iterator[str]:
    # What is wrong with a record whoever grades it, the coordinator's own check says.
    loaded, _ = records.inspect_source(graded.source)
    indexes = rubric.chosen(rewards, graded.suite)
    for line, record in enumerate(loaded.records):
        try:
            own = routing.graded_by(rewards, indexes, record.columns)
        except errors.DataError as error:
            yield f"{loaded.place(line)}: {error}"
            continue
        for index in own:
            try:
                graders[index].check(record.columns)
            except errors.DataError as error:
                yield f"{loaded.place(line)}: reward {rewards[index].name!r}: {error}"
