"""What a break of a running job costs: how long until the part is whole again, and until two more steps are done."""

import dataclasses
import time
from collections.abc import Callable, Sequence

from rljob_testing.cluster.whole_job import Watched, is_over

WHOLE_S, STEPS_S = 300.0, 240.0
MORE_STEPS = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Recovery:
    """One break, with seconds since it. `steps_s` counts to the second step that was reported after it, if any is."""

    broke: str
    whole_s: float
    steps_s: float | None = None


def measure(
    job: Watched, broke: str, do: Callable[[], object], whole: Callable[[], bool], *, whole_s: float = WHOLE_S
) -> Recovery:
    """Break something and wait until `whole()` and until the job has made more steps, or ended.

    Fails with the job's description when one of them takes longer than `whole_s` and STEPS_S.
    """
    before = job.step()
    began = time.monotonic()
    do()
    job.until(lambda _status: whole(), whole_s)
    whole_s = time.monotonic() - began
    job.until(lambda status: job.step() >= before + MORE_STEPS or is_over(status), STEPS_S)
    return Recovery(broke, whole_s, time.monotonic() - began)


def table(rows: Sequence[Recovery]) -> str:
    """Return the rows as a table of whole seconds, in Markdown."""
    head = ("| break | whole again after | two more steps after |", "|---|---|---|")
    return "\n".join([*head, *(f"| {row.broke} | {_seconds(row.whole_s)} | {_seconds(row.steps_s)} |" for row in rows)])


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} s"
