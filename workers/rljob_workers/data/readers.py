"""Raw records with their line numbers, from wherever a source points: a file, a folder, the hub, a task generator."""

import dataclasses
import importlib
import json
import pathlib
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, cast

from rljob_api.manifest.data import DataSourceSpec, ReasoningGymSpec

SUFFIXES = (".jsonl", ".parquet")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RawRecord:
    """A record as read. `problem` is set, and columns are empty, if its line is not a JSON object.

    `file` is its file's name in a source of several files, else empty.
    """

    line: int
    columns: Mapping[str, object]
    problem: str = ""
    file: str = ""


class ReadError(Exception):
    """A source that cannot be read as a whole; `line` is 0 where no line is to blame."""

    def __init__(self, text: str, *, line: int = 0) -> None:
        super().__init__(text)
        self.line = line


class _Table(Protocol):
    def to_pylist(self) -> list[dict[str, object]]: ...


class _Parquet(Protocol):
    def read_table(self, source: str) -> _Table: ...


class _Hub(Protocol):
    def snapshot_download(self, repo_id: str, *, repo_type: str, allow_patterns: Sequence[str]) -> str: ...


class _Generator(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Mapping[str, object]: ...


def place(config: DataSourceSpec) -> str:
    """Return what to call the source in messages: its file, or what makes it."""
    return config.path or (
        f"hub:{config.hub}"
        if config.hub
        else f"reasoning_gym:{config.reasoning_gym.name if config.reasoning_gym else None}"
    )


def read(config: DataSourceSpec) -> Iterator[RawRecord]:
    """Yield the records in order. Raises ReadError if the source is missing, of an unknown format, or cannot be
    made.
    """
    if config.path:
        yield from _read_path(pathlib.Path(config.path), config.split)
    elif config.hub:
        yield from _read_path(_fetch(config.hub, config.split), config.split)
    elif config.reasoning_gym:
        yield from _generate(config.name, config.reasoning_gym)
    else:
        raise ReadError(f"source {config.name!r} names no path, hub or reasoningGym")


def _read_path(path: pathlib.Path, split: str) -> Iterator[RawRecord]:
    if not path.exists():
        raise ReadError("the data file does not exist")
    files = [path] if path.is_file() else sorted(f for f in path.rglob(f"*{split}*") if f.suffix in SUFFIXES)
    if not files:
        raise ReadError(f"the folder holds no .jsonl or .parquet file of split {split!r}")
    for file in files:
        if file.suffix not in SUFFIXES:
            raise ReadError(f"unknown data format {file.suffix!r}; expected one of {', '.join(SUFFIXES)}")
        for record in _read_jsonl(file) if file.suffix == ".jsonl" else _read_parquet(file):
            yield dataclasses.replace(record, file=str(file.relative_to(path))) if len(files) > 1 else record


def _read_jsonl(file: pathlib.Path) -> Iterator[RawRecord]:
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _parse(number, line)


def _parse(number: int, line: str) -> RawRecord:
    try:
        columns = json.loads(line)
    except ValueError as error:
        return RawRecord(line=number, columns={}, problem=f"the line is not JSON: {error}")
    if not isinstance(columns, dict):
        return RawRecord(line=number, columns={}, problem=f"the line is a JSON {type(columns).__name__}, not an object")
    return RawRecord(line=number, columns=columns)


def _read_parquet(file: pathlib.Path) -> Iterator[RawRecord]:
    parquet = cast(_Parquet, importlib.import_module("pyarrow.parquet"))
    try:
        rows = parquet.read_table(str(file)).to_pylist()
    except (OSError, ValueError) as error:
        raise ReadError(f"not a readable parquet file: {error}") from error
    for number, columns in enumerate(rows, start=1):
        yield RawRecord(line=number, columns=columns)


def _fetch(hub_id: str, split: str) -> pathlib.Path:
    try:
        hub = cast(_Hub, importlib.import_module("huggingface_hub"))
        patterns = [f"*{split}*{suffix}" for suffix in SUFFIXES]
        return pathlib.Path(hub.snapshot_download(hub_id, repo_type="dataset", allow_patterns=patterns))
    except (ImportError, OSError, ValueError) as error:
        raise ReadError(f"the data set {hub_id!r} cannot be fetched from the hub: {error}") from error


def _generate(name: str, task: ReasoningGymSpec) -> Iterator[RawRecord]:
    with warnings.catch_warnings():
        # Its dependencies have invalid escapes and `is` with literals; that is theirs to fix.
        warnings.simplefilter("ignore")
        gym = importlib.import_module("reasoning_gym")
    settings = {"seed": zlib.crc32(name.encode()), **task.config, "size": task.size}
    try:
        generator = cast(_Generator, gym.create_dataset(task.name, **settings))
    except (ValueError, TypeError, AssertionError) as error:
        raise ReadError(f"reasoning_gym cannot make {task.name!r}: {error}") from error
    for index in range(len(generator)):
        # Through JSON, since that is how records travel; what JSON lacks becomes text.
        yield RawRecord(line=index + 1, columns=json.loads(json.dumps(dict(generator[index]), default=str)))
