"""A real Prometheus scrapes the processes of a whole run on this machine: types, labels, budgets, answers of panels."""

import json
import os
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from generators import metric_catalog

from rljob_api import enums
from rljob_testing import examples, observed, prometheus, rules
from rljob_testing.charts import program_or_skip
from rljob_testing.every_example import EVERY_EXAMPLE
from rljob_testing.observed import Question, Seen
from rljob_testing.prometheus import Server
from rljob_testing.runs import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NAME, HOST, STEPS = "addition-cpu", "127.0.0.1", 6
SETTINGS = (
    f"spec.maxSteps={STEPS}",
    "spec.algorithm.promptsPerStep=4",
    "spec.algorithm.groupSize=4",
    "spec.async.maxOffPolicySteps=1",
    "spec.data.filterGroups.enabled=false",
    "spec.checkpoint.everySteps=3",
    "spec.evaluation.everySteps=3",
)
FINISHED_S = 600.0


class Scraped:
    """A finished run, and what Prometheus had seen of it before it ended."""

    def __init__(self, server: Server, span: observed.Span, kinds: Mapping[str, str], namespace: str) -> None:
        self.server, self.span, self.kinds, self.namespace = server, span, kinds, namespace

    def metrics(self) -> list[Seen]:
        """Return what was seen of the metrics of a job's own processes."""
        return [one for one in observed.metrics(self.server, self.span, self.kinds) if one.process != enums.OPERATOR]

    def questions(self) -> list[Question]:
        """Return what panels ask of a job's own processes: the operator is not here."""
        of_operator = [name for name, entry in metric_catalog.exported().items() if entry.process == enums.OPERATOR]
        asked = observed.questions(NAME, self.namespace)
        return [one for one in asked if not any(name in one.query for name in (*of_operator, "kube_"))]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    if not os.environ.get(EVERY_EXAMPLE):
        pytest.skip(f"a run that is scraped was not asked for ({EVERY_EXAMPLE}=1)")
    program, folder = program_or_skip("prometheus"), tmp_path_factory.mktemp("seen")
    runs = RunFolder(folder)
    server: Server | None = None
    try:
        process = runs.start(examples.EXAMPLES / f"{NAME}.yaml", settings=SETTINGS)
        configs = wait_for_configs(folder / "run/configs")
        targets = {f"{role}-0": int(one["health_port"]) for role, one in configs.items()}
        configuration = prometheus.of_processes(targets, namespace="local", rule_files=rules.FILES)
        server, began, kinds = Server(program, folder, configuration), time.time(), dict[str, str]()
        while process.poll() is None:
            assert time.time() - began < FINISHED_S, "the run does not end"
            kinds.update(observed.types_of(server))
            time.sleep(1.0)
        assert process.returncode == 0, process.communicate()[0]
        yield Scraped(server, observed.Span(began, time.time()), kinds, configs["coordinator"]["job"]["namespace"])
    finally:
        runs.end()
        if server is not None:
            server.close()


def wait_for_configs(folder: pathlib.Path) -> dict[str, Any]:
    """Return the config of each role, once all have been written."""
    end = time.monotonic() + FINISHED_S
    while time.monotonic() < end:
        paths = {str(role): folder / f"{role}.json" for role in enums.STANDARD_ROLES}
        if all(path.exists() for path in paths.values()):
            return {role: json.loads(path.read_text()) for role, path in paths.items()}
        time.sleep(0.2)
    raise AssertionError("the configs were not written")


def test_every_metric_has_the_type_and_labels_that_are_declared(scraped: Scraped) -> None:
    assert observed.wrong_types(scraped.metrics()) == []


def test_series_of_every_process_are_within_their_budget(scraped: Scraped) -> None:
    by_pod = observed.series_by_pod(scraped.server, scraped.span, list(enums.STANDARD_ROLES))
    assert set(by_pod) == {f"{role}-0" for role in enums.STANDARD_ROLES}
    for pod, count in by_pod.items():
        assert count <= observed.budget(pod.removesuffix("-0")), by_pod


def test_every_panel_on_a_jobs_own_processes_had_data_but_for_what_this_run_lacks(scraped: Scraped) -> None:
    asked = scraped.questions()
    assert len(asked) > len(enums.STANDARD_ROLES)
    silent = observed.without_data(scraped.server, asked, scraped.span)
    unexplained = [one for one in silent if not observed.needed(one)]
    assert [f"{one.board}: {one.panel}: {one.query}" for one in unexplained] == []
