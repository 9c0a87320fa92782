"""JSON lines on stdout, text on a terminal. One event a line, past tense, the same keys everywhere; no secrets.

Use `logger.info("leased 4 groups", extra={"step": 3, "group": group_id})`: only the keys of `KEYS` are written.
"""

import datetime
import json
import logging
import sys

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
_NOISY = ("httpx", "httpcore", "urllib3", "filelock", "fsspec", "asyncio", "matplotlib")


class JsonFormatter(logging.Formatter):
    """One JSON object a line with the job's identity in each."""

    def __init__(self, identity: dict[str, object]) -> None:
        """Keep the fields that every line carries."""
        super().__init__()
        self._identity = identity

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, object] = {
            "ts": datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
            **self._identity,
        }
        line.update({key: getattr(record, key) for key in KEYS if hasattr(record, key)})
        if record.exc_info:
            line["exc"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """For people at a terminal."""

    def __init__(self) -> None:
        """Time, level, logger, message."""
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S")


def configure(*, level: str, identity: dict[str, object]) -> None:
    """Send all logging of this process to stdout in the one format; loggers of libraries included."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(TextFormatter() if sys.stdout.isatty() else JsonFormatter(identity))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)
