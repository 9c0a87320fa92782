"""Metadata files of areal-math and areal-code (docs/design/graders.md#s-4-1): one JSON object a line, by query_id.

Every problem is an error that names line and key: a duplicate id, a missing or mistyped field, an unknown task.
"""

import json
import logging
import pathlib
from collections.abc import Iterator, Mapping

from rljob_api import errors
from rljob_workers.verifier.graders.code import cases

QUERY_ID = "query_id"
TASKS = ("math", "stem", "code")
_SEPARATOR = "@"

logger = logging.getLogger(__name__)


def query_id(columns: Mapping[str, object]) -> str:
    """Return a record's id, cut at the first "@", after which samples carry their number. Raises DataError."""
    for key in (QUERY_ID, "id"):
        value = columns.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool) and str(value):
            return str(value).partition(_SEPARATOR)[0]
    raise errors.DataError(f"the record has no {QUERY_ID!r}; it has {', '.join(sorted(columns)) or 'no columns'}")


def solutions(path: pathlib.Path) -> dict[str, tuple[str, ...]]:
    """Return the solutions of a file's math and stem records. Raises ManifestError with file, line and key."""
    by_id = {identity: _solutions(record, where) for identity, record, where, task in _tasks(path) if task != "code"}
    if not by_id:
        raise errors.ManifestError(f"solutionPath {str(path)!r} holds no record of task math or stem")
    return by_id


def tests(path: pathlib.Path) -> dict[str, cases.Tests]:
    """Return the tests of a file's code records. Raises ManifestError with file, line and key."""
    by_id = {}
    for identity, record, where, task in _tasks(path):
        if task != "code":
            continue
        try:
            by_id[identity] = cases.tests_of(record)
        except errors.DataError as error:
            raise errors.ManifestError(f"{where}: {error}") from error
    if not by_id:
        raise errors.ManifestError(f"solutionPath {str(path)!r} holds no record of task code")
    return by_id


def _tasks(path: pathlib.Path) -> Iterator[tuple[str, Mapping[str, object], str, str]]:
    """Yield id, record, place and task of every record. Raises ManifestError for a bad one or an id used twice."""
    lines: dict[str, int] = {}
    for number, record in _records(path):
        where = f"{path}:{number}"
        identity = _identity(record, where)
        if identity in lines:
            raise errors.ManifestError(f"{where}: {QUERY_ID} {identity!r} was already used on line {lines[identity]}")
        lines[identity] = number
        yield identity, record, where, _task(record, where)


def _records(path: pathlib.Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    if path.suffix != ".jsonl":
        raise errors.ManifestError(f"solutionPath {str(path)!r} must end in .jsonl")
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, _record(line, f"{path}:{number}")
    except (OSError, UnicodeDecodeError) as error:
        raise errors.ManifestError(f"solutionPath {str(path)!r} cannot be read: {error}") from error


def _record(line: str, where: str) -> Mapping[str, object]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise errors.ManifestError(f"{where}: not JSON: {error}") from error
    if not isinstance(record, dict):
        raise errors.ManifestError(f"{where}: a {type(record).__name__}, not an object")
    return record


def _identity(record: Mapping[str, object], where: str) -> str:
    value = record.get(QUERY_ID)
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value):
        raise errors.ManifestError(f"{where}: {QUERY_ID!r} is {value!r}, not a text or integer")
    if _SEPARATOR in str(value):
        raise errors.ManifestError(f"{where}: {QUERY_ID!r} {value!r} must not contain '@'")
    return str(value)


def _task(record: Mapping[str, object], where: str) -> str:
    if "task" not in record:
        logger.warning("%s: no 'task'; taken as math", where)
    task = record.get("task", "math")
    if task not in TASKS:
        raise errors.ManifestError(f"{where}: 'task' is {task!r}; expected one of {', '.join(TASKS)}")
    return str(task)


def _solutions(record: Mapping[str, object], where: str) -> tuple[str, ...]:
    value = record.get("solutions")
    if not isinstance(value, list) or not value:
        raise errors.ManifestError(f"{where}: 'solutions' must be a list of texts that is not empty")
    if not all(isinstance(member, str) and member.strip() for member in value):
        raise errors.ManifestError(f"{where}: 'solutions' holds something other than a text that is not empty")
    return tuple(value)
