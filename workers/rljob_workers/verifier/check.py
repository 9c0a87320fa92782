"""`rljob-verifier --check`: can the rewards be built, and can each record of the sources be graded by all of them?"""

import dataclasses
import pathlib
from collections.abc import Iterator, Sequence

from rljob_api import errors, roles
from rljob_workers.data import records
from rljob_workers.verifier import rubric, service
from rljob_workers.verifier.graders import protocol

_Pair = tuple[roles.GraderConfig, protocol.Grader]


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
    return [problem for graded in sources for problem in _of_source(graded.source, _pairs(config, graders, graded))]


def warnings(config: roles.VerifierConfig, sources: Sequence[Graded]) -> list[str]:
    """Return one sentence per source and reward that cannot read some golds; `problems` found nothing before."""
    graders = service.make_graders(config)
    return [
        f"source {graded.source.name!r}: {count} golds are nothing that reward {reward.name!r} can read;"
        " they match as text only"
        for graded in sources
        for reward, grader in _pairs(config, graders, graded)
        if isinstance(grader, protocol.ReadsGolds) and (count := _num_unread(graded.source, grader))
    ]


def _pairs(config: roles.VerifierConfig, graders: Sequence[protocol.Grader], graded: Graded) -> list[_Pair]:
    return [(config.rewards[index], graders[index]) for index in rubric.chosen(config.rewards, graded.suite)]


def _num_unread(source: roles.DataSourceConfig, grader: protocol.ReadsGolds) -> int:
    loaded, _ = records.inspect_source(source)
    return sum(len(grader.unread_golds(record.columns)) for record in loaded.records)


def sources_of(config: roles.CoordinatorConfig) -> list[Graded]:
    """Return all sources of a run: training, then evaluation."""
    training = [Graded(source=source) for source in config.data.train]
    return training + [Graded(source=one.source, suite=one.source.name) for one in config.evaluation.suites]


def read_sources(path: pathlib.Path) -> list[Graded]:
    """Return the sources that a coordinator's config names."""
    return sources_of(roles.CoordinatorConfig.model_validate_json(path.read_bytes()))


def _of_source(source: roles.DataSourceConfig, pairs: Sequence[_Pair]) -> Iterator[str]:
    # What is wrong with a record whoever grades it, the coordinator's own check says.
    loaded, _ = records.inspect_source(source)
    for index, record in enumerate(loaded.records):
        for reward, grader in pairs:
            try:
                grader.check(record.columns)
            except errors.DataError as error:
                yield f"{loaded.place(index)}: reward {reward.name!r}: {error}"
