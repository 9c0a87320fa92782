"""The process that owns one place and runs commands in it, one at a time; may be killed at any moment.

`python -m rljob_workers.environment.worker --fd N --parent P`, started by `pool.py`. It makes its place, confines
itself, tests its confinement and proves the place empty, reports that it is ready, and serves one episode after the
other. A call that an episode is to blame for is answered with `refused`; after `broken` the place is not used again.
"""

import argparse
import base64
import binascii
import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO

from rljob_api import enums, errors
from rljob_workers.verifier import frames
from rljob_workers.verifier.sandbox import shell
from rljob_workers.verifier.sandbox.confinement import profile
from rljob_workers.verifier.sandbox.processes import confine, procfs, spawn, warm
from rljob_workers.verifier.sandbox.scratch import QuotaError

MAX_REPLY_BYTES = 4 << 20
# Of this process, on top of what a command may have: limits are inherited.
_OWN_BYTES = 256 << 20
_BROKEN = (spawn.CannotRunError, shell.NotCleanError, OSError)
_REFUSED = (shell.SpentError, QuotaError, ValueError)


def main(argv: Sequence[str] | None = None) -> int:
    """Run until the supervisor closes the connection."""
    parser = argparse.ArgumentParser(prog="environment_worker", description="Runs commands for rljob-environment.")
    parser.add_argument("--fd", type=int, required=True, help="the inherited socket")
    parser.add_argument("--parent", type=int, required=True, help="the server's process id")
    arguments = parser.parse_args(argv)
    confine.die_with(arguments.parent)
    confine.close_fds_except(arguments.fd)
    with (
        open(arguments.fd, "rb", closefd=False) as requests,
        open(arguments.fd, "wb", buffering=0) as stream,
        contextlib.closing(warm.Interpreter()) as interpreter,
    ):
        return _run(requests, stream, interpreter)


def _run(requests: BinaryIO, stream: BinaryIO, interpreter: warm.Interpreter) -> int:
    hello = frames.read(requests, max_bytes=frames.MAX_REQUEST_BYTES)
    if hello is None:
        return int(enums.ExitCode.OK)
    try:
        place = _place(hello, interpreter)
    except (errors.RLJobError, *_BROKEN) as error:
        _send(stream, {"ready": False, "error": f"{type(error).__name__}: {error}"[:1000]})
        return int(enums.ExitCode.CONFIGURATION)
    _send(stream, {"ready": True})
    served = Served(place)
    while (request := frames.read(requests, max_bytes=frames.MAX_REQUEST_BYTES)) is not None:
        reply = served.answer(request)
        _send(stream, reply)
        if "broken" in reply:
            break
    return int(enums.ExitCode.OK)


def _place(hello: Mapping[str, object], interpreter: warm.Interpreter) -> shell.Place:
    budget, scratch = hello["budget"], hello["scratch"]
    assert isinstance(budget, dict)
    limits = shell.Budget(**budget)
    confine.adopt()
    confine.silence()
    confine.confine(memory_bytes=limits.memory_bytes + _OWN_BYTES, file_bytes=limits.scratch_bytes)
    place = shell.Place(
        pathlib.Path(str(scratch)),
        confined=profile.of_this_machine(),
        budget=limits,
        start=interpreter.start,
        survivors=lambda: procfs.children(os.getpid()) - interpreter.pids,
    )
    # Last, with this process as it will be: what holds now holds for every command.
    place.verify()
    place.reset()
    return place


class Served:
    """Answers the requests of one place: JSON to JSON, bytes as base64."""

    def __init__(self, place: shell.Place) -> None:
        """No episode is open."""
        self._place = place
        self._session: shell.Session | None = None
        self._calls: Mapping[str, Callable[[Mapping[str, object]], dict[str, object]]] = {
            "open": self._open,
            "exec": self._exec,
            "read": self._read,
            "write": self._write,
            "reset": self._reset,
            "close": self._close,
        }

    def answer(self, request: Mapping[str, object]) -> dict[str, object]:
        """Return the reply; `refused` and `broken` are sentences."""
        try:
            return self._calls[str(request["call"])](request)
        except _BROKEN as error:
            return {"broken": f"{type(error).__name__}: {error}"[:1000]}
        except _REFUSED as error:
            return {"refused": str(error)[:1000]}

    def _open(self, request: Mapping[str, object]) -> dict[str, object]:
        self._session = self._place.open(str(request["episode"]))
        return {}

    def _exec(self, request: Mapping[str, object]) -> dict[str, object]:
        timeout_s, max_output = request["timeout_s"], request["max_output"]
        assert isinstance(timeout_s, int | float)
        assert isinstance(max_output, int)
        outcome = self._opened().exec(str(request["command"]), timeout_s=timeout_s, max_output=max_output)
        streams = {"stdout": text_of(outcome.stdout), "stderr": text_of(outcome.stderr)}
        return {**dataclasses.asdict(outcome), **streams}

    def _read(self, request: Mapping[str, object]) -> dict[str, object]:
        max_bytes = request["max_bytes"]
        assert isinstance(max_bytes, int)
        return {"data": text_of(self._opened().read(str(request["path"]), max_bytes))}

    def _write(self, request: Mapping[str, object]) -> dict[str, object]:
        self._opened().write(str(request["path"]), data_of(request["data"]))
        return {}

    def _reset(self, _: Mapping[str, object]) -> dict[str, object]:
        self._opened().reset()
        return {}

    def _close(self, _: Mapping[str, object]) -> dict[str, object]:
        self._session = None
        self._place.reset()
        return {}

    def _opened(self) -> shell.Session:
        assert self._session is not None, "the pool opens an episode before it forwards calls"
        return self._session


def text_of(data: bytes) -> str:
    """Return the field that carries these bytes."""
    return base64.b64encode(data).decode("ascii")


def data_of(text: object) -> bytes:
    """Return the bytes of a field. Raises WireError."""
    try:
        return base64.b64decode(str(text), validate=True)
    except binascii.Error as error:
        raise errors.WireError(f"a field is not base64: {error}") from error


def _send(stream: BinaryIO, payload: Mapping[str, object]) -> None:
    frames.write(stream, payload, max_bytes=MAX_REPLY_BYTES)


if __name__ == "__main__":
    raise SystemExit(main())
