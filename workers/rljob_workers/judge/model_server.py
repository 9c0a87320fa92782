"""The model that a judge serves itself: vLLM's server as its child, on loopback, with a key that it alone knows.

A server that ends is not started again here: the judge ends with it, and whoever started that one starts both.
"""

import asyncio
import logging
import pathlib
import secrets
import sys
from collections.abc import Mapping

import aiohttp

from rljob_api import enums, errors, process_config
from rljob_api.manifest.reward_options import JUDGE_KEY_PREFIX
from rljob_workers.runtime import boot
from rljob_workers.runtime import clock as clocks

logger = logging.getLogger(__name__)

PROGRAM = (sys.executable, "-m", "rljob_workers.models.serve")
# What vLLM's server reads its key from.
_KEY_VARIABLE = "VLLM_API_KEY"
_LOOK_S = 0.5
_GRACE_S = 4.0
# Its options are read by argparse.
_ARGUMENTS_REFUSED = 2


async def checked(config_path: pathlib.Path) -> int:
    """Return the exit code of the program that looks for the model's files, which prints what is wrong."""
    process = await asyncio.create_subprocess_exec(*PROGRAM, "--config", str(config_path), "--check")
    return await process.wait()


class ModelServer:
    """`start`, `until_ready`, then `until_ended`, which raises; `close` ends it."""

    def __init__(
        self,
        server: process_config.ModelServerConfig,
        *,
        config_path: pathlib.Path,
        environment: Mapping[str, str],
        clock: clocks.Clock,
        program: tuple[str, ...] = PROGRAM,
    ) -> None:
        """Nothing starts before `start`. config_path: of the judge, which the program reads."""
        self.key = secrets.token_urlsafe(32)
        self._server, self._clock = server, clock
        self._command = (*program, "--config", str(config_path))
        # Keys of other language models are the judge's alone.
        own = {name: value for name, value in environment.items() if not name.startswith(JUDGE_KEY_PREFIX)}
        self._environment = {**own, _KEY_VARIABLE: self.key}
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    async def start(self) -> None:
        """Start it. Raises UnavailableError if that cannot be done."""
        try:
            # From the main thread: the child asks the kernel to die with the thread that started it.
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.DEVNULL, env=self._environment
            )
        except OSError as error:
            raise errors.UnavailableError(f"the judge's model server does not start: {error}") from error

    async def until_ready(self) -> None:
        """Return once it answers, which it does with its model loaded."""
        began = self._clock.monotonic()
        async with aiohttp.ClientSession(trust_env=False) as session:
            while not await self._answers(session):
                await self._clock.sleep(_LOOK_S)
        logger.info("the judge's model answers after %.0f s", self._clock.monotonic() - began)

    async def _answers(self, session: aiohttp.ClientSession) -> bool:
        try:
            async with session.get(f"{self._server.url}/health", timeout=aiohttp.ClientTimeout(total=5.0)) as reply:
                return reply.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def until_ended(self) -> None:
        """Raises ManifestError if it refused its model or its options, UnavailableError if it ended otherwise."""
        assert self._process is not None, "started before it is watched"
        code = await self._process.wait()
        if code in (_ARGUMENTS_REFUSED, enums.ExitCode.CONFIGURATION):
            raise errors.ManifestError(
                "spec.judge: its server refused the model or an option; the lines of the log before this one say why"
            )
        raise errors.UnavailableError(f"the judge's model server ended with exit code {code}")

    async def close(self) -> None:
        """End it, and wait until it is gone."""
        await boot.end_child(self._process, grace_s=_GRACE_S)
