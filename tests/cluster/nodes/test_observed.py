"""A real Prometheus scraped a whole job and its operator: types, labels, budgets, and what every panel got to see.

The page and the picture of the run are written to build/observed; docs/ has those of one such run.
"""

import pathlib

from rljob_api import enums
from rljob_testing import observed
from rljob_testing.cluster.learning_run import NAME, LearningRun

OUT = pathlib.Path(__file__).parents[3] / "build" / "observed"


def test_every_metric_has_the_type_and_labels_that_are_declared(learned: LearningRun) -> None:
    assert observed.wrong_types(observed.metrics(learned.prometheus, learned.span, learned.kinds)) == []


def test_series_of_a_jobs_processes_are_within_their_budget(learned: LearningRun) -> None:
    by_pod = {pod: count for pod, count in series(learned).items() if pod.startswith(f"{NAME}-")}
    assert len(by_pod) == len(enums.STANDARD_ROLES)
    for pod, count in by_pod.items():
        assert count <= observed.budget(pod.removeprefix(f"{NAME}-").split("-")[0]), by_pod


def test_series_of_the_operator_are_within_their_budget(learned: LearningRun) -> None:
    (count,) = (count for pod, count in series(learned).items() if not pod.startswith(f"{NAME}-"))
    num_jobs = observed.num_jobs(learned.prometheus, learned.span)
    assert count <= observed.budget(enums.OPERATOR, num_jobs=num_jobs)


def series(learned: LearningRun) -> dict[str, int]:
    """Return series by pod, of the job and of the operator: other tests' jobs may still be there."""
    return observed.series_by_pod(learned.prometheus, learned.span, (f"{NAME}-", f"rljob-{enums.OPERATOR}"))


def test_every_panel_had_data_but_for_what_this_run_lacks(learned: LearningRun) -> None:
    asked = observed.questions(NAME, "default")
    seen = observed.metrics(learned.prometheus, learned.span, learned.kinds)
    silent = observed.without_data(learned.prometheus, asked, learned.span)
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "observed.md").write_text(observed.page(seen, silent, len(asked), series(learned)))
    of_run = [one for one in asked if one.board == "run"]
    (OUT / observed.PICTURE).write_text(observed.picture(learned.prometheus, of_run, learned.span))
    unexplained = [one for one in silent if not observed.needed(one)]
    assert [f"{one.board}: {one.panel}: {one.query}" for one in unexplained] == []
