"""Which task a record is of: what it names, or what it is taken for. Pure."""

from collections.abc import Mapping

TASK = "task"
INPUT_OUTPUT = "input_output"
REPOSITORY = "repository"


def assumed(columns: Mapping[str, object]) -> str:
    """Return the task of a record that names none: code if it has tests, else math.

    Deviation from docs/design/graders.md#s-4-1, which takes it for math: a record of tests alone has no gold to be
    that.
    """
    return "code" if INPUT_OUTPUT in columns else "math"


def of(columns: Mapping[str, object]) -> object:
    """Return the task that a record names, which may be anything, or what one without is taken for."""
    return columns.get(TASK, assumed(columns))
