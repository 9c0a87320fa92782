"""One page about a run: curves, shares and what good looks like. Self-contained HTML, readable offline."""

from collections.abc import Sequence

from rljob_workers.local.report import summary
from rljob_workers.local.rundir import history, journal


def render(*, job: str, run: history.Run, numbers: summary.Summary, entries: Sequence[journal.Entry]) -> str:
    # Imported here: the plotting library costs a second that only a report should pay.
    from rljob_workers.local.report import page

    return page.render(job=job, run=run, numbers=numbers, entries=entries)
