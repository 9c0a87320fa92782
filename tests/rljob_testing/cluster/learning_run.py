"""The addition example as it is, on two nodes, from its application to its end: watched, and scraped."""

import contextlib
import dataclasses
import pathlib
import subprocess
import time
from collections.abc import Iterator, Mapping

from rljob_testing import observed
from rljob_testing.cluster import scraping, whole_job
from rljob_testing.cluster.full import FullCluster
from rljob_testing.cluster.manifests import Object
from rljob_testing.cluster.whole_job import Watched
from rljob_testing.prometheus import Server

NAME = "learning"
FINISHED_S = 1800.0
# The last scrape and the last evaluation of rules.
_SETTLED_S = 12.0
Row = dict[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class LearningRun:
    """The job after its end. rows: what a person who watched it read. kinds: types of metrics, as processes said."""

    job: Watched
    rows: list[Row]
    prometheus: Server
    span: observed.Span
    kinds: Mapping[str, str]


@contextlib.contextmanager
def learned(cluster: FullCluster, volume: pathlib.Path, folder: pathlib.Path) -> Iterator[LearningRun]:
    """Let the example run to its end, with a Prometheus that scrapes it and goes with the context."""
    with contextlib.ExitStack() as undo:
        scraped = undo.enter_context(scraping.scraping(cluster, folder))
        whole_job.apply(cluster, [*whole_job.surroundings(NAME, volume), whole_job.addition(NAME, {})])
        undo.callback(cluster.kubectl, "delete", "rljob", NAME, "--wait=false")

        def is_over(status: Object) -> bool:
            scraped.refresh()
            return whole_job.is_over(status)

        shown = folder / "rljob.txt"
        with shown.open("wb") as file:
            process = subprocess.Popen(cluster.plane.kubectl_command("get", "rljob", NAME, "-w"), stdout=file)
            try:
                job = Watched(cluster, NAME)
                job.until(is_over, FINISHED_S)
            finally:
                process.terminate()
                process.wait()
        time.sleep(_SETTLED_S)
        yield LearningRun(job, rows(shown.read_text()), scraped.server, scraped.span, scraped.kinds)


def rows(shown: str) -> list[Row]:
    """Return the rows in which every column is filled."""
    header, *lines = [line.split() for line in shown.splitlines()]
    return [dict(zip(header, line, strict=True)) for line in lines if len(line) == len(header)]
