"""Data sources: reading JSONL, parquet, hub folders and reasoning-gym into records, each checked before a job starts.

Every record has the canonical columns `prompt` and `id`, and `answer` where it has a gold; its own columns stay. A
problem names file and line. The gold's form is the grader's matter (`gold.py`), prompt lengths are the rollout's,
which has the tokenizer.
"""

import collections
import dataclasses
import logging
import pathlib
from collections.abc import Iterable, Mapping, Sequence

from rljob_api import errors, types
from rljob_api.manifest import base
from rljob_api.manifest.data import DataSourceSpec, TrainSourceSpec
from rljob_api.manifest.job import JobSpec
from rljob_workers.data import formats, pictures, readers
from rljob_workers.objects import cache

logger = logging.getLogger(__name__)
_NUM_LOGGED = 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something wrong with a source: where, and a sentence. Line 0 is the source as a whole."""

    where: str
    line: int
    text: str

    def __str__(self) -> str:
        """Return `file:line: sentence`."""
        return f"{self.where}:{self.line}: {self.text}" if self.line else f"{self.where}: {self.text}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSource:
    """A source's valid records in file order, their line numbers, and how many were dropped by reason."""

    name: str
    weight: float
    where: str
    records: tuple[types.PromptRecord, ...]
    lines: tuple[int, ...]
    num_read: int = 0
    dropped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    prompt_column: str = "prompt"

    @property
    def prompt_ids(self) -> tuple[str, ...]:
        """Return the ids in file order."""
        return tuple(record.prompt_id for record in self.records)

    def place(self, index: int) -> str:
        """Return `file:line` of a record."""
        return f"{self.where}:{self.lines[index]}"


def on_this_machine(spec: JobSpec, cache_dir: pathlib.Path) -> JobSpec:
    """Return the spec with its sources in object stores as files below `cache_dir`, fetched unless they are there.

    Raises DataError for one that is not there or cannot be opened, StorageError where a store does not answer.
    """

    def fetched(source: base.SectionT) -> base.SectionT:
        assert isinstance(source, DataSourceSpec)
        if source.uri is None:
            return source
        try:
            path = cache.file(source.uri, spec.storage.s3, cache_dir)
        except (FileNotFoundError, errors.StorageAccessError) as error:
            raise errors.DataError(f"source {source.name!r}: {error}") from error
        return base.with_parts(source, path=str(path), uri=None)

    return base.with_parts(
        spec,
        data=base.with_parts(spec.data, train=tuple(map(fetched, spec.data.train))),
        evaluation=base.with_parts(spec.evaluation, suites=tuple(map(fetched, spec.evaluation.suites))),
    )


def load_source(config: DataSourceSpec) -> LoadedSource:
    """Raises DataError with all problems, one a line, unless invalid records are to be dropped."""
    loaded, problems = inspect_source(config)
    if problems:
        raise errors.DataError("\n".join(str(problem) for problem in problems))
    return loaded


def inspect_source(config: DataSourceSpec) -> tuple[LoadedSource, list[Problem]]:
    """Return what of a source is valid, and every problem. With onInvalidRecord drop, records' problems are only
    logged.
    """
    where = readers.place(config)
    try:
        raw = list(readers.read(config))
    except readers.ReadError as error:
        return _loaded(config, where, [], num_read=0, dropped={}), [
            Problem(where=where, line=error.line, text=str(error))
        ]
    valid, problems = _validate(config, where, raw)
    if config.on_invalid_record == "Drop":
        for problem in problems[:_NUM_LOGGED]:
            logger.warning("dropped a record: %s", problem)
        dropped: Mapping[str, int] = collections.Counter(problem.text for problem in problems)
        problems = []
    else:
        dropped = {}
    if not valid and not problems:
        problems = [Problem(where=where, line=0, text=f"source {config.name!r} holds no usable record")]
    loaded = _loaded(config, where, valid, num_read=len(raw), dropped=dropped)
    logger.info("read %d records of %s, kept %d, dropped %d", len(raw), config.name, len(valid), len(raw) - len(valid))
    return loaded, problems


def check_sources(configs: Iterable[DataSourceSpec]) -> tuple[list[Problem], list[str]]:
    """Return every problem of the sources, none if they can be used, and a warning for each that drops records. Names
    must be unique.
    """
    configs = list(configs)
    counted = collections.Counter(config.name for config in configs)
    doubled = [name for name, count in counted.items() if count > 1]
    problems = [Problem(where="data", line=0, text=f"two sources are named {name!r}") for name in doubled]
    warnings: list[str] = []
    for config in configs:
        loaded, findings = inspect_source(config)
        problems += findings
        if loaded.dropped and not findings:
            warnings.append(_dropped(loaded))
    return problems, warnings


def _dropped(loaded: LoadedSource) -> str:
    counted = collections.Counter(loaded.dropped)
    summary = "; ".join(f"{count} x {text}" for text, count in counted.most_common(_NUM_LOGGED))
    return f"source {loaded.name!r}: {counted.total()} of {loaded.num_read} records are left out: {summary}"


Valid = tuple[int, types.PromptRecord]


def _loaded(
    config: DataSourceSpec, where: str, valid: Sequence[Valid], *, num_read: int, dropped: Mapping[str, int]
) -> LoadedSource:
    return LoadedSource(
        name=config.name,
        weight=config.weight if isinstance(config, TrainSourceSpec) else 1.0,
        where=where,
        records=tuple(record for _, record in valid),
        lines=tuple(line for line, _ in valid),
        num_read=num_read,
        dropped=dropped,
        prompt_column=config.columns.prompt,
    )


def _validate(
    config: DataSourceSpec, where: str, raw: Sequence[readers.RawRecord]
) -> tuple[list[Valid], list[Problem]]:
    valid: list[Valid] = []
    problems: list[Problem] = []
    first_use: dict[str, str] = {}
    for record in raw:
        place = str(pathlib.Path(where) / record.file) if record.file else where
        try:
            columns = formats.canonical(record, config)
            files = _pictures(columns, config)
        except errors.DataError as error:
            problems.append(Problem(where=place, line=record.line, text=str(error)))
            continue
        prompt_id = str(columns["id"])
        if prompt_id in first_use:
            text = f"id {prompt_id!r} was already used on {first_use[prompt_id]}"
            problems.append(Problem(where=place, line=record.line, text=text))
            continue
        first_use[prompt_id] = f"line {record.line}" + (f" of {record.file}" if record.file else "")
        prompt = types.PromptRecord(prompt_id=prompt_id, source=config.name, columns=columns, pictures=files)
        valid.append((record.line, prompt))
    return valid, problems


def _pictures(columns: dict[str, object], config: DataSourceSpec) -> tuple[bytes, ...]:
    """Return the files of a record's pictures, and take their column away: graders get all others, in JSON."""
    name = config.columns.images
    if name is None:
        return ()
    if name not in columns:
        raise errors.DataError(f"the record has no column {name!r}, which columns.images names")
    path = None if config.path is None else pathlib.Path(config.path)
    folder = path if path is None or path.is_dir() else path.parent
    files = pictures.of_record(columns.pop(name), name, folder)
    columns["prompt"] = pictures.marked(columns["prompt"], len(files))
    return files
