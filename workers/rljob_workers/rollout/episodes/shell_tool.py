"""The shell that an episode has as a tool: its place, what a model sees of a command, and the task's hidden tests.

A place is claimed with its first use and given back at the end. One that is lost is no one's answer (PlaceError): the
attempt is made again, in another. What the episode is to blame for, a limit or a used budget, the model is told.
"""

import contextlib
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Protocol, Self

from rljob_api import errors
from rljob_workers.rpc import environment

# Every control character but tab and line feed.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LARGEST_CHARACTER = 4
_STOPPED = {
    "wall": "it took too long",
    "cpu": "it computed too long",
    "memory": "it needed too much memory or too many processes",
    "disk": "the files were too large or too many, and were removed",
    "forbidden": "it did what is not allowed",
}


class Place(Protocol):
    """What is needed of `environment.Shell`, which raises as it does."""

    async def exec(self, command: str, *, timeout_s: float, max_output: int) -> environment.Reply: ...

    async def write(self, path: str, data: bytes) -> None: ...


class Places(Protocol):
    """What is needed of `environment.Environments`."""

    def open(self, episode: str, *, wait_s: float) -> contextlib.AbstractAsyncContextManager[Place]: ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """command_s: of each command. output_chars: that the model sees of one. wait_s: for a place."""

    command_s: float
    output_chars: int
    wait_s: float


class EpisodeShell:
    """One episode's place; an asynchronous context manager. Its methods raise PlaceError for a place that is lost."""

    def __init__(self, places: Places, episode: str, *, files: Mapping[str, str], limits: Limits) -> None:
        """`files` are written before the first command, by their path below the place's folder."""
        self._places, self._episode, self._files, self._limits = places, episode, files, limits
        self._open = contextlib.AsyncExitStack()
        self._place: Place | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def run(self, command: str) -> str:
        """Run a command and return what the model sees of it. Raises DataError for files that cannot be written."""
        return shown(await self._exec(command), self._limits.output_chars)

    async def share_passed(self, tests: Sequence[str]) -> float:
        """Return which share of the tests, commands each, ends with exit code 0; 1 for none. Raises as `run`."""
        replies = [await self._exec(test) for test in tests]
        passed = [not (reply.exit_code or reply.refused or reply.stopped) for reply in replies]
        return sum(passed) / len(passed) if passed else 1.0

    async def _exec(self, command: str) -> environment.Reply:
        max_output = _LARGEST_CHARACTER * self._limits.output_chars
        try:
            place = self._place or await self._claimed()
            return await place.exec(command, timeout_s=self._limits.command_s, max_output=max_output)
        except errors.DataError:
            raise
        except errors.RLJobError as error:
            raise errors.PlaceError(f"the place of {self._episode} was lost: {error}") from error

    async def _claimed(self) -> Place:
        self._place = await self._open.enter_async_context(self._places.open(self._episode, wait_s=self._limits.wait_s))
        for path, text in self._files.items():
            try:
                await self._place.write(path, text.encode())
            except environment.RefusedError as error:
                raise errors.DataError(f"record {self._episode}: files: {error}") from error
        return self._place


def shown(reply: environment.Reply, most_chars: int) -> str:
    """Return what a model sees of a command: both streams, cut, without control characters, and how it ended."""
    if reply.refused:
        return f"[refused: {reply.refused}]"
    text = escaped(reply.stdout) + escaped(reply.stderr)
    is_cut = reply.truncated or len(text) > most_chars
    notes = ["[the rest is left out]"] if is_cut else []
    if reply.stopped:
        notes.append(f"[ended: {_STOPPED.get(reply.stopped, reply.stopped)}]")
    elif reply.exit_code:
        notes.append(f"[exit code {reply.exit_code}]")
    return "\n".join([*([text[:most_chars].rstrip("\n")] if text else []), *notes])


def escaped(data: bytes) -> str:
    """Return bytes as text: what is not UTF-8, and control characters, as `\\x1b`."""
    text = data.decode(errors="backslashreplace").replace("\r\n", "\n")
    return _CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", text)


def files_of(columns: Mapping[str, object], *, where: str) -> dict[str, str]:
    """Return the column `files` of a record, texts by path; empty without one. Raises DataError."""
    files = columns.get("files") or {}
    if not isinstance(files, Mapping) or not all(
        isinstance(path, str) and isinstance(text, str) for path, text in files.items()
    ):
        raise errors.DataError(f"{where}: column 'files' must be an object of texts by path")
    return dict(files)


def tests_of(columns: Mapping[str, object], *, where: str) -> list[str]:
    """Return the column `tests` of a record, commands; empty without one. Raises DataError."""
    tests = columns.get("tests") or []
    if not isinstance(tests, Sequence) or isinstance(tests, str) or not all(isinstance(each, str) for each in tests):
        raise errors.DataError(f"{where}: column 'tests' must be a list of commands")
    return [str(test) for test in tests]
