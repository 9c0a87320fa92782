"""A job as it changes: a watch that is begun again whenever it ends, until a deadline.

read --> yield --> watch from its version --> yield ... --> the server ends the watch ---> watch from the last version
  ^                                                     |
  +------ after a pause, if it was a failure; at once if the version has expired (410) --+
"""

import time
from collections.abc import Callable, Iterator

from rljob import errors
from rljob.api import Api, Object

WATCH_S = 300
EXPIRED = 410
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0


def objects(
    api: Api,
    name: str,
    *,
    deadline: float | None = None,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Object]:
    """Yield the job as it is and after each change, until `deadline` on the clock `now`.

    Raises GoneError when it is deleted, another job of its name among them; NotFoundError if it was never there; any
    other answer that trying again does not change, such as a missing right.
    """
    uid, version, pause_s = "", "", _FIRST_PAUSE_S
    while deadline is None or now() < deadline:
        try:
            if not version:
                body = _read(api, name, uid)
                uid, version = body["metadata"]["uid"], body["metadata"]["resourceVersion"]
                yield body
            left_s = WATCH_S if deadline is None else max(1, min(WATCH_S, int(deadline - now())))
            for event in api.watch(name, version, seconds=left_s):
                body, pause_s = event["object"], _FIRST_PAUSE_S
                if event["type"] == "DELETED" or body["metadata"]["uid"] != uid:
                    raise errors.GoneError(f"{name} was deleted")
                version = body["metadata"]["resourceVersion"]
                yield body
        except errors.ApiError as error:
            if not _passes(error):
                raise
            version = ""
            if error.status != EXPIRED:
                sleep(pause_s if deadline is None else min(pause_s, max(0.0, deadline - now())))
                pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)


def _read(api: Api, name: str, uid: str) -> Object:
    try:
        body = api.get(name)
    except errors.NotFoundError:
        if uid:
            raise errors.GoneError(f"{name} was deleted") from None
        raise
    if uid and body["metadata"]["uid"] != uid:
        raise errors.GoneError(f"{name} was deleted, and another job has its name")
    return body


def _passes(error: errors.ApiError) -> bool:
    """Return whether an error ends by itself: no answer, an expired version, too many requests, a server's failure."""
    return error.status in (errors.NO_ANSWER, EXPIRED, 429) or error.status >= 500
