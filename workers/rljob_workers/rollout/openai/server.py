"""One HTTP server per rollout, on loopback: each open episode has a path and a key of its own, valid while it is open.

There is nothing else to reach: no models to register, no other episode's calls.
"""

import asyncio
import contextlib
import dataclasses
import hmac
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from rljob_api import errors, types
from rljob_workers.rollout.openai import calls, interactions, requests
from rljob_workers.runtime import redaction

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 8 << 20
Answer = Callable[[calls.Call], Awaitable[interactions.Interaction]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """What an agent is given."""

    base_url: str
    api_key: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    api_key: str
    sampling: types.Sampling
    answer: Answer
    calls: set["asyncio.Task[object]"]


class Proxy:
    """Starts with the first episode; `close` ends it."""

    def __init__(self) -> None:
        """Nothing listens yet."""
        self._sessions: dict[str, _Session] = {}
        self._starting = asyncio.Lock()
        self._runner: web.AppRunner | None = None
        self._port = 0

    @contextlib.asynccontextmanager
    async def open(self, *, sampling: types.Sampling, answer: Answer) -> AsyncIterator[Address]:
        """Serve one episode's calls by `answer`; afterwards its path and key are void and its open calls cancelled."""
        await self._start()
        name, key = secrets.token_hex(16), secrets.token_urlsafe(32)
        session = _Session(api_key=key, sampling=sampling, answer=answer, calls=set())
        self._sessions[name] = session
        try:
            yield Address(base_url=f"http://127.0.0.1:{self._port}/{name}/v1", api_key=key)
        finally:
            del self._sessions[name]
            # A client that gave up leaves its call behind; no one reads the answer any more.
            for call in session.calls:
                call.cancel()

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _start(self) -> None:
        async with self._starting:
            if self._runner is not None:
                return
            app = web.Application(client_max_size=MAX_BODY_BYTES)
            app.router.add_post("/{session}/v1/{api:chat/completions|responses}", self._serve)
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self._port = int(runner.addresses[0][1])
            self._runner = runner

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        session = self._sessions.get(request.match_info["session"])
        api_key = request.headers.get("Authorization", "").removeprefix("Bearer ")
        # The same answer for a wrong path and a wrong key: neither tells which episodes are open.
        if session is None or not hmac.compare_digest(api_key.encode(), session.api_key.encode()):
            return _refusal(401, "invalid_api_key", "this address and key belong to no open episode")
        dialect = calls.DIALECTS[request.match_info["api"]]
        own = asyncio.current_task()
        assert own is not None, "a handler runs in a task"
        session.calls.add(own)
        own.add_done_callback(session.calls.discard)
        try:
            call = dialect.read(await request.json(), session.sampling)
            done = await session.answer(call)
        except (requests.BadCallError, json.JSONDecodeError) as error:
            return _refusal(400, "invalid_request_error", str(error))
        except errors.EpisodeError as error:
            return _refusal(400, "context_length_exceeded", str(error))
        except errors.RLJobError as error:
            return _refusal(503, "engine_unavailable", str(error))
        except Exception as error:  # noqa: BLE001  # boundary: a chat template is code, and is given the conversation
            redaction.log(logger, "a call of an agent", error)
            return _refusal(500, "internal_error", f"the call raised {redaction.describe(error)}")
        created = int(time.time())
        if not call.stream:
            return web.json_response(dialect.answer(call, done, created=created))
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await stream.prepare(request)
        for event in dialect.events(call, done, created=created):
            await stream.write(event.encode())
        await stream.write_eof()
        return stream


def _refusal(status: int, code: str, sentence: str) -> web.Response:
    body = {"error": {"message": sentence, "type": "invalid_request_error", "code": code}}
    return web.json_response(body, status=status)
