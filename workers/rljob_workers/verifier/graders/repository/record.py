"""The repository of a record whose tests judge an answer: read once, every fault is an error that names the key.

Column `repository`, an object or its JSON text:

    files       path -> text: the repository as the task has it; an answer may write over these and alongside them
    test_files  path -> text: tests and configuration, which are put over whatever an answer wrote
    tests       the ids of pytest that must pass, each in a file of test_files: `tests/test_sums.py::test_of_two`
"""

import dataclasses
import json
from collections.abc import Mapping

from rljob_api import errors
from rljob_workers.data.record_task import REPOSITORY
from rljob_workers.runtime import redaction
from rljob_workers.verifier.graders.repository import paths

FILES, TEST_FILES, TESTS = "files", "test_files", "tests"
MAX_FILES = 512
# Every answer of a group brings its record along, in one message of at most 64 MiB.
MAX_BYTES = 1 << 20
MAX_TESTS = 500
MAX_ID_CHARS = 500
_SHOWN_CHARS = 60


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """Texts by path, and the ids [N] of the tests that must pass."""

    files: Mapping[str, str]
    test_files: Mapping[str, str]
    tests: tuple[str, ...]


def repository_of(columns: Mapping[str, object]) -> Repository:
    """Raises DataError that names the key."""
    value = columns.get(REPOSITORY)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise errors.DataError(f"{REPOSITORY!r} holds {len(value)} characters that are not JSON") from error
    if not isinstance(value, dict):
        raise errors.DataError(
            f"{REPOSITORY!r} must be an object with {FILES}, {TEST_FILES} and {TESTS}, not {redaction.brief(value)}"
        )
    files, test_files = _texts(value, FILES), _texts(value, TEST_FILES)
    if not test_files:
        raise errors.DataError(f"'{REPOSITORY}.{TEST_FILES}' is empty, but needs the files of the tests")
    _check_whole(files, test_files)
    return Repository(files=files, test_files=test_files, tests=_tests(value, test_files))


def _texts(value: Mapping[str, object], key: str) -> dict[str, str]:
    texts = value.get(key)
    if not isinstance(texts, dict):
        raise errors.DataError(f"'{REPOSITORY}.{key}' must be an object of texts by path, not {redaction.brief(texts)}")
    for path, text in texts.items():
        wrong = paths.problem(path)
        if wrong:
            raise errors.DataError(f"'{REPOSITORY}.{key}' has the path {_cut(path)}, which {wrong}")
        if not isinstance(text, str) or not _is_text(text):
            raise errors.DataError(f"'{REPOSITORY}.{key}' at {_cut(path)} must be a text, not {redaction.brief(text)}")
    return texts


def _check_whole(files: Mapping[str, str], test_files: Mapping[str, str]) -> None:
    both = {**files, **test_files}
    if len(both) > MAX_FILES:
        raise errors.DataError(f"{REPOSITORY!r} has {len(both)} files, but may have {MAX_FILES}")
    size = sum(len(text.encode()) for text in both.values())
    if size > MAX_BYTES:
        raise errors.DataError(f"{REPOSITORY!r} has {size} bytes in all, but may have {MAX_BYTES}")
    clash = paths.clash(both)
    if clash:
        raise errors.DataError(f"{REPOSITORY!r} has {_cut(clash)} as a file, and files below it")


def _tests(value: Mapping[str, object], test_files: Mapping[str, str]) -> tuple[str, ...]:
    where = f"'{REPOSITORY}.{TESTS}'"
    tests = value.get(TESTS)
    if not isinstance(tests, list) or not 0 < len(tests) <= MAX_TESTS:
        actual = f"{len(tests)} of them" if isinstance(tests, list) else redaction.brief(tests)
        raise errors.DataError(f"{where} must be a list of 1 to {MAX_TESTS} ids of tests, not {actual}")
    for index, test in enumerate(tests):
        if not isinstance(test, str) or not 0 < len(test) <= MAX_ID_CHARS or not _is_text(test):
            raise errors.DataError(
                f"'{REPOSITORY}.{TESTS}[{index}]' must be a text of 1 to {MAX_ID_CHARS} characters,"
                f" not {redaction.brief(test)}"
            )
        file, colons, name = test.partition("::")
        if not colons or not name or file not in test_files:
            raise errors.DataError(
                f"'{REPOSITORY}.{TESTS}[{index}]' is {_cut(test)}, but must read file::test with a file of"
                f" {TEST_FILES}, which no answer can change"
            )
    if len(set(tests)) < len(tests):
        twice = next(test for index, test in enumerate(tests) if test in tests[:index])
        raise errors.DataError(f"{where} names {_cut(twice)} twice")
    return tuple(tests)


def _is_text(value: str) -> bool:
    """Return whether it can be written: a lone surrogate has no UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _cut(text: str) -> str:
    return repr(text[:_SHOWN_CHARS])
