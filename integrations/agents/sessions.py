"""Sessions of a job's gateway for programs of others: take one, have it played, close it with the reward.

By the standard library alone, for it runs in the environment of whatever it starts. What a session is:
docs/agents.md#a-session.
"""

import dataclasses
import json
import logging
import os
import pathlib
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

logger = logging.getLogger("agent")

MODEL = "policy"
WAIT_S = 20
RETRY_S = 1.0
CALL_S = 600.0
LONGEST_REASON = 500
NUMBER = 0.25
_SUM = re.compile(r"(\d+) \+ (\d+) = (\d*)")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One attempt at one answer. task: the record's columns."""

    base_url: str
    api_key: str = dataclasses.field(repr=False)
    task: Mapping[str, Any]

    @property
    def question(self) -> str:
        """Return the sum that is asked for, such as `33 + 47`."""
        first, second, _ = _SUM.findall(self.task["prompt"])[-1]
        return f"{first} + {second}"

    @property
    def examples(self) -> list[tuple[str, str]]:
        """Return the sums that the record shows, each with its answer."""
        return [
            (f"{first} + {second}", answer) for first, second, answer in _SUM.findall(self.task["prompt"]) if answer
        ]

    def score(self, text: str) -> float:
        """Return 1 for the answer, NUMBER for a number and nothing else."""
        return 1.0 if self.is_right(text) else NUMBER * text.strip().isdigit()

    def is_right(self, text: str) -> bool:
        """Return whether the first number of a text is the answer."""
        return re.findall(r"\d+", text)[:1] == [self.task["answer"]]


Play = Callable[[Session], float]


def serve(play: Play, *, num_sessions: int) -> None:
    """Play sessions, `num_sessions` at once, until the process is ended. `play` returns the reward; whatever it raises
    gives the attempt up, and the job makes it again.
    """
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    # A line for each call, with the address of its session.
    for name in ("httpx", "httpx2", "LiteLLM"):
        logging.getLogger(name).setLevel(logging.WARNING)
    threads = [threading.Thread(target=_play_forever, args=(play,), daemon=True) for _ in range(num_sessions)]
    for thread in threads:
        thread.start()
    # Once the main thread returns, executors take nothing new, and with them asyncio's.
    for thread in threads:
        thread.join()


def _play_forever(play: Play) -> None:
    while True:
        try:
            session = take()
            if session is not None:
                attempt(play, session)
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            # A rollout that starts, is full or is gone, or a session that is over: its attempt is offered again.
            logger.info("the gateway did not take a call: %.*s", LONGEST_REASON, error)
            time.sleep(RETRY_S)


def take() -> Session | None:
    """Wait for a session, None if none came. Raises URLError."""
    gateway = os.environ["RLJOB_GATEWAY"]
    key = pathlib.Path(os.environ["RLJOB_GATEWAY_KEY_FILE"]).read_text(encoding="utf-8").strip()
    body = _post(f"{gateway}/v1/sessions", key, {"waitSeconds": WAIT_S})
    if body is None:
        return None
    return Session(base_url=body["base_url"], api_key=body["api_key"], task=body["task"])


def attempt(play: Play, session: Session) -> None:
    """Play a session to its end. Raises URLError where the gateway does not take the result."""
    try:
        reward = play(session)
    except Exception as error:  # noqa: BLE001  # boundary: a program of others may raise anything, and none is a reward
        cause: BaseException = error
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        logger.warning("gave an attempt up: %s: %.*s", type(cause).__name__, LONGEST_REASON, cause)
        _post(f"{session.base_url}/abandon", session.api_key, {})
    else:
        _post(f"{session.base_url}/close", session.api_key, {"reward": reward})


def _post(url: str, key: str, body: object) -> Any:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers=headers, method="POST")
    with urllib.request.urlopen(request, timeout=CALL_S) as answer:
        return json.loads(answer.read() or "null")
