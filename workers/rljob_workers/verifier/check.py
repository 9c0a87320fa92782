"""`rljob-verifier --check`: can the rewards be built, and can each record of the sources be graded by its own?"""

import collections
import dataclasses
import pathlib
from collections.abc import Iterator, Sequence

from rljob_api import errors, process_config, types
from rljob_api.manifest.data import DataSourceSpec
from rljob_workers.data import left_out, record_task, records
from rljob_workers.verifier import rubric, service
from rljob_workers.verifier.graders import base


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """A source of records and the evaluation suite that it is, "" in training."""

    source: DataSourceSpec
    suite: str = ""


def findings(config: process_config.VerifierConfig, sources: Sequence[Graded]) -> left_out.Findings:
    """Return one sentence per problem, a record's with file and line. Where there is none, one warning per source that
    leaves out records, per source and reward that cannot parse some references, and per source and task that its
    records do not name.
    """
    try:
        graders = service.make_graders(config)
        for reward, grader in zip(config.rewards, graders, strict=True):
            if ":" in reward.type:
                # Its module is imported here, in a program of its own, and later only in grading workers.
                grader.warm()
        service.import_packages(config)
    except errors.ManifestError as error:
        return left_out.Findings(problems=list(error.problems))
    except errors.SandboxError as error:
        return left_out.Findings(problems=[str(error)])
    by_source = left_out.joined(_of_source(graded, config.rewards, graders) for graded in sources)
    return left_out.Findings(problems=by_source.problems) if by_source.problems else by_source


def _of_source(
    graded: Graded, rewards: Sequence[process_config.GraderConfig], graders: Sequence[base.Grader]
) -> left_out.Findings:
    # Defects of a record that do not depend on the grader are reported by the coordinator's own check.
    loaded, _ = records.inspect_source(graded.source)
    wrong = list(_wrong(loaded.records, graded.suite, rewards, graders))
    judged = left_out.judged(graded.source, loaded, wrong, drops=graded.source.on_invalid_record == "Drop")
    if judged.problems:
        return judged
    refused = {index for index, _ in wrong}
    usable = [record for index, record in enumerate(loaded.records) if index not in refused]
    return left_out.joined([judged, left_out.Findings(warnings=list(_warnings(graded, usable, rewards, graders)))])


def _warnings(
    graded: Graded,
    usable: Sequence[types.PromptRecord],
    rewards: Sequence[process_config.GraderConfig],
    graders: Sequence[base.Grader],
) -> Iterator[str]:
    indexes = process_config.graders_of(rewards, graded.suite)
    for index in indexes:
        grader = graders[index]
        if isinstance(grader, base.ParsesReferences):
            own = [record for record in usable if index in rubric.graded_by(rewards, indexes, record.columns)]
            if count := sum(len(grader.unparsed_references(record.columns)) for record in own):
                yield (
                    f"source {graded.source.name!r}: reward {rewards[index].name!r} cannot parse {count} references;"
                    " they match only as text"
                )
    if rubric.by_task(rewards, indexes):
        for task, count in _without_task(usable).items():
            unnamed = f"{count} records name no {record_task.TASK!r}"
            yield f"source {graded.source.name!r}: {unnamed}; they are graded as {task}"


def _without_task(loaded: Sequence[types.PromptRecord]) -> collections.Counter[str]:
    """Return how many records name no task, by the task that they are taken to have."""
    return collections.Counter(
        record_task.assumed(record.columns) for record in loaded if record_task.TASK not in record.columns
    )


def sources_of(config: process_config.CoordinatorConfig) -> list[Graded]:
    """Return all sources of a run whose answers are graded: training, then evaluation. Examples are learned."""
    spec = records.on_this_machine(config.spec, pathlib.Path(config.cache_dir))
    training = [Graded(source=source) for source in spec.data.prompt_sources]
    return training + [Graded(source=suite, suite=suite.name) for suite in spec.evaluation.suites]


def read_sources(path: pathlib.Path) -> list[Graded]:
    """Return the sources that a coordinator's config names."""
    return sources_of(process_config.CoordinatorConfig.model_validate_json(path.read_bytes()))


def _wrong(
    loaded: Sequence[types.PromptRecord],
    suite: str,
    rewards: Sequence[process_config.GraderConfig],
    graders: Sequence[base.Grader],
) -> Iterator[tuple[int, str]]:
    """Yield the index of a record and why a reward that is to grade it cannot."""
    indexes = process_config.graders_of(rewards, suite)
    for number, record in enumerate(loaded):
        try:
            own = rubric.graded_by(rewards, indexes, record.columns)
        except errors.DataError as error:
            yield number, str(error)
            continue
        for index in own:
            try:
                graders[index].check(record.columns)
            except errors.DataError as error:
                yield number, f"reward {rewards[index].name!r}: {error}"
