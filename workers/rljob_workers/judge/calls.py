"""Calls of one reward's judge: at most so many at once and a minute, tried again until a deadline, counted.

A call that comes to nothing never becomes a score: it raises `UnavailableError`.
"""

import asyncio
import contextlib
import email.utils
import json
import logging
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any

from rljob_api import enums
from rljob_api.manifest.reward_options import JudgeOptions
from rljob_workers.judge import transport
from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import judge_costs, retry
from rljob_workers.runtime import metrics as metrics_module

logger = logging.getLogger(__name__)

_FIRST_DELAY_S, _MOST_DELAY_S = 0.5, 20.0
# Statuses that another try may change.
_PASSING = frozenset({408, 409, 425, 500, 502, 503, 504, 529})
_MOST_TOKENS = 10**9
# A judge that asks for more is tried again all the same.
_MOST_RETRY_AFTER_S = 600.0


class UnavailableError(Exception):
    """The judge gave no verdict: whose fault it is, it is not the answer's."""


class Calls:
    """The door to one reward's judge."""

    def __init__(
        self,
        *,
        reward: str,
        options: JudgeOptions,
        key: str,
        metrics: metrics_module.Metrics,
        clock: clocks.Clock,
        post: transport.Post = transport.post,
        rng: random.Random | None = None,
    ) -> None:
        """`key` is the bearer token, "" for none; `rng` is for the jitter of the delays between tries."""
        self._reward, self._options, self._key = reward, options, key
        self._metrics, self._clock, self._post, self._rng = metrics, clock, post, rng or random.Random()
        self._slots = asyncio.Semaphore(options.max_concurrent)
        self._next_at = self._not_before = 0.0
        self._last_refusal = ""
        self.cost = judge_costs.Cost()

    async def ask(self, path: str, body: Mapping[str, Any], *, deadline: float) -> Mapping[str, Any]:
        """Return the JSON object that the judge answers with. Raises UnavailableError.

        deadline: on the monotonic clock; nothing is waited for beyond it.
        """
        url, payload = self._options.url.rstrip("/") + path, json.dumps(body).encode()
        backoff = retry.Backoff(first_s=_FIRST_DELAY_S, most_s=_MOST_DELAY_S, rng=self._rng)
        while True:
            outcome, why, reply = await self._once(url, payload, deadline)
            self.count(outcome)
            if reply is not None:
                return reply
            if outcome is enums.JudgeCall.REFUSED:
                self._tell(why)
                raise UnavailableError(why)
            await self._sleep_until(self._clock.monotonic() + backoff.next_delay_s(), deadline, why)

    def count(self, outcome: enums.JudgeCall) -> None:
        if outcome is enums.JudgeCall.CACHED:
            self.cost = self.cost.plus(judge_costs.Cost(cached=1))
        self._metrics.counter("rljob_judge_calls_total").inc(reward=self._reward, outcome=str(outcome))

    async def _once(
        self, url: str, payload: bytes, deadline: float
    ) -> tuple[enums.JudgeCall, str, Mapping[str, Any] | None]:
        """Return what became of one call, a sentence about it, and the judge's object if there is one."""
        async with self._slot(deadline):
            await self._wait_for_rate(deadline)
            began = self._clock.monotonic()
            limit_s = min(self._options.call_seconds, deadline - began)
            try:
                async with asyncio.timeout(limit_s):
                    reply = await self._post(url, payload, key=self._key)
            except TimeoutError:
                return enums.JudgeCall.TIMEOUT, f"no answer in {limit_s:.3g} s", None
            except transport.BrokenCallError as error:
                return enums.JudgeCall.UNREACHABLE, str(error), None
            finally:
                spent_s = self._clock.monotonic() - began
                self._metrics.histogram("rljob_judge_seconds").observe(spent_s, reward=self._reward)
                self.cost = self.cost.plus(judge_costs.Cost(calls=1, seconds=spent_s))
        return self._read(reply)

    @contextlib.asynccontextmanager
    async def _slot(self, deadline: float) -> AsyncIterator[None]:
        try:
            await asyncio.wait_for(self._slots.acquire(), max(0.0, deadline - self._clock.monotonic()))
        except TimeoutError as error:
            raise UnavailableError("the deadline passed while other calls were under way") from error
        try:
            yield
        finally:
            self._slots.release()

    async def _wait_for_rate(self, deadline: float) -> None:
        now = self._clock.monotonic()
        at = max(now, self._not_before, self._next_at)
        if at < deadline and self._options.calls_per_minute:
            self._next_at = at + 60.0 / self._options.calls_per_minute
        await self._sleep_until(at, deadline, "callsPerMinute or Retry-After let no call begin before the deadline")

    async def _sleep_until(self, at: float, deadline: float, why: str) -> None:
        now = self._clock.monotonic()
        if at >= deadline:
            raise UnavailableError(why)
        if at > now:
            await self._clock.sleep(at - now)

    def _read(self, reply: transport.Reply) -> tuple[enums.JudgeCall, str, Mapping[str, Any] | None]:
        if reply.status == 200:
            content = _object(reply.body)
            if content is None:
                return enums.JudgeCall.FAILED, "status 200 without a JSON object", None
            self._count_tokens(content)
            return enums.JudgeCall.ANSWERED, "", content
        why = f"status {reply.status}"
        if reply.retry_after:
            # For every call: who asks too much asks together.
            delay_s = retry_after_s(reply.retry_after, now=self._clock.now())
            self._not_before = max(self._not_before, self._clock.monotonic() + delay_s)
        if reply.status == 429:
            return enums.JudgeCall.BUSY, why, None
        if reply.status in _PASSING:
            return enums.JudgeCall.FAILED, why, None
        if 300 <= reply.status < 400:
            return enums.JudgeCall.REFUSED, f"{why}: redirects are not followed, since the key would go along", None
        return enums.JudgeCall.REFUSED, why, None

    def _count_tokens(self, content: Mapping[str, Any]) -> None:
        usage = content.get("usage")
        for kind in ("prompt", "completion"):
            count = usage.get(f"{kind}_tokens") if isinstance(usage, Mapping) else None
            if isinstance(count, int) and 0 < count <= _MOST_TOKENS:
                self._metrics.counter("rljob_judge_tokens_total").inc(count, reward=self._reward, kind=kind)
                self.cost = self.cost.plus(judge_costs.Cost.model_validate({f"{kind}_tokens": count}))

    def _tell(self, why: str) -> None:
        """Log a refusal once: it is the same for every answer."""
        if why != self._last_refusal:
            logger.error("judge of reward %s refused: %s", self._reward, why)
        self._last_refusal = why


def _object(body: bytes) -> Mapping[str, Any] | None:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def retry_after_s(text: str, *, now: float) -> float:
    """Return the seconds that a Retry-After asks for, a number or a date, at most ten minutes; 0 for anything else.

    now: unix seconds.
    """
    if text.isascii() and text.isdigit() and len(text) <= 9:
        return min(_MOST_RETRY_AFTER_S, float(text))
    try:
        return min(_MOST_RETRY_AFTER_S, max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now))
    except (ValueError, TypeError, OverflowError):
        return 0.0
