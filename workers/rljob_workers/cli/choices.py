"""Values that options may have."""

import enum


class Output(enum.StrEnum):
    """How a command prints."""

    TEXT = "text"
    JSON = "json"


class Level(enum.StrEnum):
    """Severity of a log line."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"
