"""Values that options may have."""

import enum
import itertools
import pathlib

from rljob_api import enums


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


_MOST = 200


def jobs(incomplete: str) -> list[str]:
    """Return the jobs that have a run below runs/."""
    runs = (path.parent.name for path in pathlib.Path("runs").glob("*/job.json"))
    return sorted(itertools.islice((name for name in runs if name.startswith(incomplete)), _MOST))


def roles(incomplete: str) -> list[str]:
    """Return the roles, and the runner."""
    return [role for role in ("runner", *map(str, enums.Role)) if role.startswith(incomplete)]


def reasons(incomplete: str) -> list[str]:
    """Return the reasons of verdicts and of drops."""
    all_reasons = [*map(str, enums.VerdictReason), *map(str, enums.DropReason)]
    return [reason for reason in all_reasons if reason.startswith(incomplete)]
