"""What is told of an exception or a value that may be made of a prompt, an answer, a gold or a secret: its type, and
where it came from. Code of a user's raises and returns what it likes, and so may a library that was given texts.

The message itself is a line of level `logs.TEXT`, cut, which is written only where it was asked for twice.
"""

import logging
import pathlib
import traceback
from collections.abc import Mapping

from rljob_workers.runtime import logs

MAX_TEXT_CHARS = 256


class WithheldError(Exception):
    """Stands in a log for an exception whose message is not told; it has the type's name and the stack."""


def told(error: BaseException) -> str:
    """Return type and innermost place: `ValueError at my_code.py:12 in ask`."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return type(error).__name__
    last = frames[-1]
    return f"{type(error).__name__} at {pathlib.Path(last.filename).name}:{last.lineno} in {last.name}"


def shown(value: object) -> str:
    """Return a number, a truth value or None as it is, and of anything else the type: it may be a text."""
    return repr(value) if value is None or isinstance(value, int | float) else f"a {type(value).__name__}"


def log(logger: logging.Logger, what: str, error: BaseException, *, keys: Mapping[str, object] | None = None) -> None:
    """Log as an error that `what` raised, with the stack. `keys`: as `extra` of any line."""
    stand_in = WithheldError(type(error).__name__)
    trace = (WithheldError, stand_in, error.__traceback__)
    logger.error("%s raised %s", what, told(error), extra=keys, exc_info=trace)
    if logger.isEnabledFor(logs.TEXT):
        logger.log(logs.TEXT, "%s said: %s", what, str(error)[:MAX_TEXT_CHARS], extra=keys)
