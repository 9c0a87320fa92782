"""What is reported an exception or a value that may be made of a prompt, an answer, a gold or a secret: its type, and
where it came from. Code of a user's raises and returns what it likes, and so may a library that was given texts.

The message itself is a line of level `TEXT`, cut, which is written only where it was asked for twice.
"""

import logging
import pathlib
import traceback
import types
from collections.abc import Mapping

# Below DEBUG: lines with pieces of prompts and answers, for who develops a workflow. Off unless switched on.
TEXT = 5
MAX_TEXT_CHARS = 256
# Whose lines quote what code that they carry raised: tasks that no one waited for, callbacks, handlers of requests, and
# messages of tool servers (`client` is the logger of a session of the package mcp).
_CARRIERS = frozenset({"aiohttp", "asyncio", "client", "concurrent", "grpc", "mcp"})

# What `log_first` has logged: a few, since places in code are.
_logged = set[tuple[str, str]]()


class RedactedError(Exception):
    """Takes the place of an exception in a log whose message is not reported; it has the type's name and the stack."""


def describe(error: BaseException) -> str:
    """Return type and innermost place: `ValueError at my_code.py:12 in ask`."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return type(error).__name__
    last = frames[-1]
    return f"{type(error).__name__} at {pathlib.Path(last.filename).name}:{last.lineno} in {last.name}"


def brief(value: object) -> str:
    """Return a number, a truth value or None as it is, and of anything else the type: it may be a text."""
    return repr(value) if value is None or isinstance(value, int | float) else f"a {type(value).__name__}"


def log(logger: logging.Logger, what: str, error: BaseException, *, keys: Mapping[str, object] | None = None) -> None:
    """Log as an error that `what` raised, with the stack. `keys`: as `extra` of any line."""
    logger.error("%s raised %s", what, describe(error), extra=keys, exc_info=_stand_in(error))
    if logger.isEnabledFor(TEXT):
        logger.log(TEXT, "%s said: %s", what, str(error)[:MAX_TEXT_CHARS], extra=keys)


def log_first(logger: logging.Logger, what: str, error: BaseException) -> None:
    """As `log` for the first of its type and place in this process, and a line of level DEBUG for each later one.

    For what a model's texts may raise thousands of times.
    """
    key = (what, describe(error))
    if key in _logged:
        logger.debug("%s raised %s", *key)
        return
    _logged.add(key)
    log(logger, f"for the first time {what}", error)


def strip(record: logging.LogRecord) -> bool:
    """Take the quoted exception out of a line of a library that carries others' code; a filter that lets all pass.

    What is left is the first line of its message and the stack.
    """
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and record.name.partition(".")[0] in _CARRIERS:
        record.msg, record.args = record.getMessage().partition("\n")[0], ()
        record.exc_info, record.exc_text = _stand_in(error), None
    return True


def _stand_in(error: BaseException) -> tuple[type[RedactedError], RedactedError, types.TracebackType | None]:
    return RedactedError, RedactedError(type(error).__name__), error.__traceback__
