"""The transport to a server that is a child process: lines of JSON over its standard streams.

The MCP package has one, too. It hands on more variables, leaves processes that the server started, and waits seconds
for a server that does not end; here the whole process group is killed.
"""

import asyncio
import collections
import contextlib
import logging
import math
import os
import pathlib
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Mapping

import anyio
import anyio.abc
import mcp_types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from rljob_api import errors
from rljob_api.manifest.rollout import ToolServer
from rljob_workers.rollout.tool_servers import leash
from rljob_workers.runtime import redaction

logger = logging.getLogger(__name__)

INHERITED = ("PATH", "HOME", "LANG")
# Of one message.
MOST_BYTES = 16 << 20
# Of the log, for one process; its lines may quote what a model wrote.
_MOST_LOG_LINES, _MOST_LOG_CHARS = 100, 256
_LAST_LINES = 5
_EXIT_S = 5.0

Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


class Pipes(asyncio.SubprocessProtocol):
    """What a process says: messages to `incoming`, its last lines of standard error to `last_lines`.

    hung_up: whether it closed its output before it was ended; set `is_ending` before that.
    """

    def __init__(self, server: str, incoming: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        self._server, self._incoming, self._line, self._num_lines = server, incoming, bytearray(), 0
        self.last_lines = collections.deque[str](maxlen=_LAST_LINES)
        self.exited = asyncio.Event()
        self.hung_up = self.is_ending = False

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Take a piece of standard output or error."""
        if fd == 2:
            self._log(data)
            return
        self._line += data
        if b"\n" in data:
            *lines, rest = bytes(self._line).split(b"\n")
            self._line = bytearray(rest)
            for line in filter(None, map(bytes.strip, lines)):
                self._deliver(line)
        if len(self._line) > MOST_BYTES:
            self._line.clear()
            self._incoming.close()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002  # the reason is the exit
        """End the session with standard output."""
        if fd == 1:
            self.hung_up = not self.is_ending
            self._incoming.close()

    def process_exited(self) -> None:
        self.exited.set()

    def _deliver(self, line: bytes) -> None:
        try:
            message: SessionMessage | Exception = SessionMessage(
                mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
            )
        except ValueError as error:
            message = error
        with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._incoming.send_nowait(message)

    def _log(self, data: bytes) -> None:
        for line in data.decode(errors="replace").splitlines():
            self.last_lines.append(line[:_MOST_LOG_CHARS])
            self._num_lines += 1
            if self._num_lines <= _MOST_LOG_LINES:
                logger.log(redaction.TEXT, "MCP server %s: %s", self._server, line[:_MOST_LOG_CHARS])


def environment_of(server: ToolServer, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a server's process. Raises ManifestError for one that the rollout has not."""
    missing = [name for name in server.variables if name not in environment]
    if missing:
        raise errors.ManifestError(
            f"variables of {server.name} has {missing[0]}, which the rollout's environment has not: set it in"
            " spec.rollout.pod.env, or for rljob run in its own environment"
        )
    inherited = (*INHERITED, *server.variables)
    return {name: environment[name] for name in inherited if name in environment} | server.env


@contextlib.asynccontextmanager
async def process(server: ToolServer, environment: Mapping[str, str]) -> AsyncIterator[tuple[Streams, Pipes]]:
    """Run the server's command; its whole process group is killed at the end.

    Raises ManifestError for a program that is not there, and UnavailableError for one that cannot be started now.
    """
    variables = environment_of(server, environment)
    if shutil.which(server.command[0], path=variables.get("PATH")) is None:
        raise errors.ManifestError(
            f"command of {server.name} begins with '{server.command[0]}', which is no program here: it must be in the"
            " image of spec.rollout, or on the machine of rljob run"
        )
    arrived, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](math.inf)
    outgoing, leaving = anyio.create_memory_object_stream[SessionMessage](math.inf)
    try:
        transport, pipes = await asyncio.get_running_loop().subprocess_exec(
            lambda: Pipes(server.name, arrived),
            *(sys.executable, "-I", "-S", str(pathlib.Path(leash.__file__)), str(os.getpid()), *server.command),
            env=variables,
            start_new_session=True,
        )
    except OSError as error:
        raise errors.UnavailableError(f"MCP server {server.name} could not be started: {error}") from error
    writing = asyncio.ensure_future(_write(leaving, transport))
    try:
        yield (incoming, outgoing), pipes
    finally:
        pipes.is_ending = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(transport.get_pid(), signal.SIGKILL)
        writing.cancel()
        transport.close()
        for stream in (arrived, incoming, outgoing, leaving):
            stream.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(pipes.exited.wait(), _EXIT_S)


async def _write(leaving: MemoryObjectReceiveStream[SessionMessage], transport: asyncio.SubprocessTransport) -> None:
    pipe = transport.get_pipe_transport(0)
    assert isinstance(pipe, asyncio.WriteTransport), "the process was started with a pipe"
    async for each in leaving:
        line = each.message.model_dump_json(by_alias=True, exclude_unset=True)
        pipe.write(f"{line}\n".encode())
