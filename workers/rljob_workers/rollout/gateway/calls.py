"""One call over HTTP: whose it is, what it asks for in which API, its answer or why there is none."""

import asyncio
import contextlib
import hmac
import logging
import ssl
from collections.abc import Callable, Iterable, Iterator

from aiohttp import web

from rljob_api import errors
from rljob_workers.rollout.gateway import conversation, sessions, streaming
from rljob_workers.rollout.gateway.dialects import fields, registry
from rljob_workers.runtime import redaction

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 8 << 20
PATH = "/{session}/v1/{api:.+}"
MODELS = "models"
Find = Callable[[str], sessions.Session | None]


class RefusedError(Exception):
    """A call that is not served: HTTP status, OpenAI's code, and the sentence that the client reads."""

    def __init__(self, status: int, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.code, self.sentence = status, code, sentence


async def serve(request: web.Request, find: Find) -> web.StreamResponse:
    """Answer a call of one of the APIs. `find` gives open sessions by name."""
    api = request.match_info["api"]
    dialect = registry.DIALECTS.get(api, registry.OTHER)
    try:
        session = session_of(request, find)
        if api == MODELS and request.method == "GET":
            return web.json_response(fields.models())
        if api not in registry.DIALECTS or request.method != "POST":
            raise RefusedError(404, "not_found", f"POST one of {', '.join(registry.DIALECTS)}; there is no {api:.80}")
        with session.call():
            body = await body_of(request)
            with _refusals():
                call = dialect.read(body, session.attempt.sampling)
            if call.stream:
                return await _streamed(request, session.attempt, dialect, call)
            with _refusals():
                return web.json_response(dialect.answer(call, await session.attempt.answer(call, None)))
    except RefusedError as refused:
        return web.json_response(dialect.refusal(refused.status, refused.code, refused.sentence), status=refused.status)


def session_of(request: web.Request, find: Find) -> sessions.Session:
    """Return the session whose path and key a request has. Raises RefusedError: the same for a wrong path and a wrong
    key, so that neither tells which sessions are open.
    """
    session = find(request.match_info["session"])
    if session is None or not is_key(request, session.api_key):
        raise RefusedError(401, "invalid_api_key", "this address and key belong to no open session")
    return session


def is_key(request: web.Request, key: str) -> bool:
    """Return whether a request has this key, as OpenAI's or Anthropic's client sends it, in constant time."""
    key_sent = request.headers.get("x-api-key") or request.headers.get("Authorization", "").removeprefix("Bearer ")
    return hmac.compare_digest(key_sent.encode(), key.encode())


async def body_of(request: web.Request) -> object:
    """Return the JSON of a body. Raises RefusedError."""
    try:
        return await request.json()
    except web.HTTPRequestEntityTooLarge as error:
        raise RefusedError(413, "request_too_large", f"a body has at most {MAX_BODY_BYTES} bytes") from error
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, "invalid_request_error", "the body must be JSON in UTF-8") from error


async def _streamed(
    request: web.Request, attempt: sessions.Attempt, dialect: registry.Dialect, call: conversation.Call
) -> web.StreamResponse:
    """Write an answer as it is sampled. Raises RefusedError as long as nothing was written."""
    heard = streaming.Heard()
    answering = asyncio.ensure_future(attempt.answer(call, heard))
    answering.add_done_callback(lambda _: heard.end())
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    stream, sent = None, fields.assistant("")
    try:
        async for piece in heard.pieces():
            if stream is None:
                assert heard.opening is not None, "an answer begins before it grows"
                stream = dialect.stream(call, heard.opening)
                await response.prepare(request)
                await _write(response, stream.begin())
            if isinstance(piece, str):
                await _write(response, stream.text(piece))
                sent = fields.assistant(sent.content + piece)
            else:
                await _write(response, stream.called(piece))
                sent = fields.assistant(sent.content, *sent.tool_calls, piece)
        try:
            answer = await _finished(answering, sent)
        except RefusedError as refused:
            if stream is None:
                raise
            body = dialect.refusal(refused.status, refused.code, refused.sentence)
            await _write(response, [fields.event(body, name="error")])
        else:
            begun: Iterable[str] = ()
            if stream is None:
                stream = dialect.stream(call, answer)
                await response.prepare(request)
                begun = stream.begin()
            await _write(response, [*begun, *_rest(stream, answer, sent)])
        await response.write_eof()
    except ConnectionResetError:
        # The client is gone. What it asked for is sampled to its end all the same, as without a stream.
        await asyncio.gather(answering, return_exceptions=True)
    finally:
        answering.cancel()
    return response


async def _finished(
    answering: "asyncio.Future[conversation.Answer]", sent: conversation.Message
) -> conversation.Answer:
    with _refusals():
        answer = await answering
        output, calls = answer.output, sent.tool_calls
        # Once a call was sent, the text before it is whole.
        goes_on = output.content == sent.content if calls else output.content.startswith(sent.content)
        if not goes_on or output.tool_calls[: len(calls)] != calls:
            raise errors.EngineError("what was streamed is not how the answer begins")
    return answer


def _rest(stream: registry.Stream, answer: conversation.Answer, sent: conversation.Message) -> Iterator[str]:
    """Yield the events of what was not sent yet."""
    if text := answer.output.content[len(sent.content) :]:
        yield from stream.text(text)
    for call in answer.output.tool_calls[len(sent.tool_calls) :]:
        yield from stream.called(call)
    yield from stream.end(answer)


async def _write(response: web.StreamResponse, events: Iterable[str]) -> None:
    await response.write("".join(events).encode())


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except fields.BadCallError as error:
        raise RefusedError(400, "invalid_request_error", str(error)) from error
    except errors.EpisodeError as error:
        raise RefusedError(400, "context_length_exceeded", str(error)) from error
    except errors.RLJobError as error:
        raise RefusedError(503, "engine_unavailable", str(error)) from error
    except Exception as error:  # boundary: a chat template is code, and is given the conversation
        redaction.log(logger, "a call of an agent", error)
        raise RefusedError(500, "internal_error", f"the call raised {redaction.describe(error)}") from error


class Listener:
    """An HTTP server of some routes."""

    def __init__(self, routes: list[web.RouteDef]) -> None:
        """Nothing listens yet."""
        self._routes = routes
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int, encryption: ssl.SSLContext | None = None) -> int:
        """Listen, and return the port, which is a free one for 0. Raises OSError if it is taken.

        encryption: None for plain text.
        """
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.add_routes(self._routes)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port, ssl_context=encryption).start()
        except OSError:
            await runner.cleanup()
            raise
        self._runner = runner
        return int(runner.addresses[0][1])

    async def close(self) -> None:
        """Stop listening; open calls are cancelled."""
        if self._runner is not None:
            # A connection whose accepting has begun when its server is closed is lost and stays open (asyncio.Server,
            # Python 3.11); a timer's turn in a round of the loop comes after that of sockets.
            await asyncio.sleep(1e-9)
            for site in list(self._runner.sites):
                await site.stop()
            # Until each waits for a request: one that has not had a turn by then is waited for to the end of a minute.
            for _ in range(3):
                await asyncio.sleep(0)
            await self._runner.cleanup()
            self._runner = None
