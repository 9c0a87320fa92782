"""The port that agents outside the rollout's process reach: they take an attempt, make its calls, close it.

POST /v1/sessions          key of the gateway   {"waitSeconds": 20} -> 200 the session, 204 if there was no attempt
POST /<session>/v1/<api>   key of the session   the APIs of `dialects/`
POST /<session>/v1/close   key of the session   {"reward": 1.0}, {"rewards": {"call-0": 1.0}}, or {}: the job's own
POST /<session>/v1/abandon key of the session   {}: the attempt is offered to another agent
"""

import json
import logging
import math
from collections.abc import Mapping

from aiohttp import web

from rljob_api import errors, process_config
from rljob_api.manifest.rollout import KEY_VARIABLE
from rljob_workers.rollout.gateway import calls, sessions
from rljob_workers.rollout.gateway.dialects import openai_form
from rljob_workers.rpc import https

logger = logging.getLogger(__name__)

SHORTEST_KEY = 16
LONGEST_WAIT_S = 60.0


def key_of(environment: Mapping[str, str]) -> str:
    """Return the key by which agents take attempts. Raises ManifestError if there is none, or a short one."""
    key = environment.get(KEY_VARIABLE, "")
    if len(key) < SHORTEST_KEY:
        raise errors.ManifestError(
            f"spec.rollout.gateway needs a key of at least {SHORTEST_KEY} characters in {KEY_VARIABLE}, which has"
            f" {len(key)}: set it in the environment of rljob run, or from a Secret in spec.rollout.pod.env"
        )
    return key


class Gateway:
    """The port. `async with`; serves from the first to the last line of the block."""

    def __init__(
        self,
        config: process_config.GatewayConfig,
        open_sessions: sessions.Sessions,
        key: str,
        tls: process_config.TlsConfig | None = None,
    ) -> None:
        """`config` says where, and whether connections are encrypted: by the certificate of `tls` then."""
        self._config, self._sessions, self._key = config, open_sessions, key
        assert tls is not None or not config.service, "what certificates name has a certificate"
        self._tls = tls if config.service else None
        self._listener = calls.Listener(
            [
                web.post("/v1/sessions", self._take),
                web.post("/{session}/v1/{how:close|abandon}", self._end),
                web.route("*", calls.PATH, self._serve),
            ]
        )
        self._address = ""

    async def __aenter__(self) -> "Gateway":
        """Raises UnavailableError if the port is taken, or the certificate cannot be read."""
        encryption = None if self._tls is None else https.server_context(self._tls)
        try:
            port = await self._listener.start(self._config.bind_host, self._config.port, encryption)
        except OSError as error:
            raise errors.UnavailableError(f"port {self._config.port} of the gateway: {error}") from error
        self._address = self._config.url_of(self._config.host, port)
        logger.info("served agents on port %d", port, extra={"event": "gateway_ready"})
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._listener.close()

    @property
    def address(self) -> str:
        """What agents dial."""
        return self._address

    async def _take(self, request: web.Request) -> web.Response:
        try:
            if not calls.is_key(request, self._key):
                raise calls.RefusedError(401, "invalid_api_key", "this key does not open sessions")
            wait_s = _wait_s(await calls.body_of(request))
            if self._sessions.is_full:
                raise calls.RefusedError(
                    429, "too_many_sessions", "as many sessions are open or asked for as may be: come again"
                )
        except calls.RefusedError as refused:
            return _refused(refused)
        session = await self._sessions.take(wait_s)
        if session is None:
            return web.Response(status=204)
        answer = {
            "session": session.name, "base_url": f"{self._address}/{session.name}/v1", "api_key": session.api_key,
            "task": json.loads(session.attempt.task), "idle_seconds": self._sessions.limits.idle_s,
            "session_seconds": self._sessions.limits.session_s,
        }  # fmt: skip
        return web.json_response(answer)

    async def _end(self, request: web.Request) -> web.Response:
        try:
            session = calls.session_of(request, self._sessions.find)
            body = await calls.body_of(request)
            if request.match_info["how"] == "close":
                session.close(_rewards(body))
            else:
                session.abandon()
        except calls.RefusedError as refused:
            return _refused(refused)
        return web.json_response({})

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        return await calls.serve(request, self._sessions.find)


def _refused(refused: calls.RefusedError) -> web.Response:
    body = openai_form.Refusals().refusal(refused.status, refused.code, refused.sentence)
    return web.json_response(body, status=refused.status)


def _wait_s(body: object) -> float:
    value = _number(body.get("waitSeconds", 0)) if isinstance(body, dict) else None
    if value is None or not 0 <= value <= LONGEST_WAIT_S:
        raise calls.RefusedError(
            400, "invalid_request_error", f"the body must be an object with waitSeconds of 0 to {LONGEST_WAIT_S:g}"
        )
    return value


def _rewards(body: object) -> object:
    """Return what an agent in the process would have returned: a number, or numbers by the id of a call. None leaves
    the rewards to the job.
    """
    if body == {}:
        return None
    if isinstance(body, dict) and body.keys() == {"reward"}:
        rewards: object = _number(body["reward"])
    elif isinstance(body, dict) and body.keys() == {"rewards"} and isinstance(body["rewards"], dict):
        by_id = {key: _number(value) for key, value in body["rewards"].items()}
        rewards = None if None in by_id.values() else by_id
    else:
        rewards = None
    if rewards is None:
        raise calls.RefusedError(
            400,
            "invalid_request_error",
            'the body must be {"reward": number}, {"rewards": {"call-0": number}}, or {} for the rewards of the job',
        )
    return rewards


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None  # type: ignore[arg-type]  # by the line above
