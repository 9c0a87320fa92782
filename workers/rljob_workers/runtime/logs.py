"""JSON lines on stdout, text on a terminal. One event a line, past tense, the same keys everywhere; no secrets.

Use `logger.info("leased 4 groups", extra={"step": 3, "group": group_id})`: only the keys of `KEYS` are written. Values
of secrets are masked wherever they are, because an exception of a library may hold them.
"""

import datetime
import json
import logging
import re
import sys
from collections.abc import Mapping, Sequence

from rljob_workers.runtime import redaction

KEYS = (
    "event",
    "step",
    "version",
    "group",
    "sample",
    "lease",
    "rank",
    "seconds",
    "error_class",
    "error_reason",
    "trace_id",
)
MASK = "***"
_NOISY = ("httpx", "httpx2", "httpcore", "mcp", "urllib3", "filelock", "fsspec", "asyncio", "matplotlib")
# Whose DEBUG lines are written: clients of language models log whole requests there.
_OURS = frozenset({"rljob_workers", "rljob_api", "__main__"})
_SECRET_NAME = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|KEY|PAT)(_|$)", re.IGNORECASE)
# Shorter values are in ordinary words.
_SHORTEST_SECRET = 8


def secrets_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of the variables that hold a secret by their name (HF_TOKEN, WANDB_API_KEY), longest first,
    because one may be a part of another.
    """
    secrets = {value for name, value in environment.items() if _SECRET_NAME.search(name)}
    return tuple(sorted((value for value in secrets if len(value) >= _SHORTEST_SECRET), key=len, reverse=True))


def masked(text: str, secrets: Sequence[str]) -> str:
    """Return the text with a mask in place of each secret."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text


class JsonFormatter(logging.Formatter):
    """One JSON object a line with the job's identity in each."""

    def __init__(self, identity: dict[str, object], *, secrets: Sequence[str] = ()) -> None:
        """Keep the fields that every line carries, and what no line may."""
        super().__init__()
        self._identity, self._secrets = identity, secrets

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ts": datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds"),
            # Who reads the lines knows the usual levels.
            "level": record.levelname.lower() if record.levelno > redaction.TEXT else "debug",
            "logger": record.name,
            "msg": record.getMessage(),
            **self._identity,
        }
        line.update({key: getattr(record, key) for key in KEYS if hasattr(record, key)})
        if record.exc_info:
            line["exc"] = self.formatException(record.exc_info)
        return json.dumps({key: self._safe(value) for key, value in line.items()}, ensure_ascii=False)

    def _safe(self, value: object) -> object:
        """Return a number as it is, anything else as text without secrets, before JSON escapes a part of them."""
        return value if isinstance(value, int | float | None) else masked(str(value), self._secrets)


class TextFormatter(logging.Formatter):
    """For people at a terminal."""

    def __init__(self, *, secrets: Sequence[str] = ()) -> None:
        """Time, level, logger, message."""
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S")
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the stack below it."""
        return masked(super().format(record), self._secrets)


def is_wanted(record: logging.LogRecord) -> bool:
    """Return whether a line is written that is severe enough: of libraries, none below INFO."""
    return record.levelno >= logging.INFO or record.name.partition(".")[0] in _OURS


def configure(*, level: str, identity: dict[str, object], secrets: Sequence[str] = (), texts: bool = False) -> None:
    """Send all logging of this process to stdout in the one format; loggers of libraries included.

    `secrets` are masked. `texts`: at level Debug, lines of level `redaction.TEXT` too.
    """
    handler = logging.StreamHandler(sys.stdout)
    terminal = sys.stdout.isatty()
    handler.setFormatter(TextFormatter(secrets=secrets) if terminal else JsonFormatter(identity, secrets=secrets))
    handler.addFilter(is_wanted)
    handler.addFilter(redaction.strip)
    logging.addLevelName(redaction.TEXT, "TEXT")
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(redaction.TEXT if texts and level == "Debug" else level.upper())
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)
