"""The real Prometheus scrapes the product's own endpoints, loads the chart's rules, and answers every dashboard.

Every series that a process can have is on its page, so a query without data asks for what no process shows.
"""

import asyncio
import json
import pathlib
import re
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from generators import dashboards, metric_catalog

from rljob_api import enums
from rljob_operator.telemetry.health import HealthServer as OperatorHealth
from rljob_testing import full_pages, prometheus, promql, rules
from rljob_testing.charts import program_or_skip
from rljob_testing.prometheus import PromtoolError, Server
from rljob_workers.runtime import health

HOST = "127.0.0.1"
LIMIT_S = 240.0
CHOSEN = {
    "$__rate_interval": "1m",
    "$__interval": "1m",
    '"$rljob_namespace"': f'"{full_pages.JOB.namespace}"',
    '"$rljob"': f'"{full_pages.JOB.name}"',
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scraped(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    """A Prometheus that has scraped and evaluated all of it a few times."""
    program = program_or_skip("prometheus")
    operator = OperatorHealth(alive=str, ready=str, exposition=full_pages.OperatorPage().exposition)
    _, port = await operator.start(host=HOST, health_port=0, metrics_port=0)
    ports, servers = {enums.OPERATOR: port}, []
    for role in enums.Role:
        page = full_pages.RolePage(role)
        servers.append(health.HealthServer(host=HOST, port=0, metrics=page, ready=health.always))
        servers[-1].start()
        ports[str(role)] = servers[-1].port
    pods = {f"{name}-0": port for name, port in ports.items()}
    configuration = prometheus.of_processes(pods, namespace="default", rule_files=rules.FILES)
    server = Server(program, pathlib.Path(tmp_path_factory.mktemp("prometheus")), configuration)
    try:
        yield server
    finally:
        server.close()
        for each in servers:
            await asyncio.to_thread(each.close)
        await operator.close()


async def until_all_have_data(server: Server, queries: list[str]) -> list[str]:
    """Return the queries that have no data when the time is up; none as soon as all have had some."""
    end = time.monotonic() + LIMIT_S
    left = queries
    while left and time.monotonic() < end:
        answers = [await asyncio.to_thread(server.query, query) for query in left]
        left = [query for query, answer in zip(left, answers, strict=True) if not answer]
        await asyncio.sleep(0.2)
    return left


def board_queries() -> list[str]:
    """Return what all panels ask, for the job that is scraped."""
    found = []
    for path in sorted(dashboards.FOLDER.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                query = target["expr"]
                for name, value in CHOSEN.items():
                    query = query.replace(name, value)
                found.append(query)
    return sorted(set(found))


@pytest.mark.asyncio(loop_scope="module")
async def test_every_panel_of_every_dashboard_has_data(scraped: Server) -> None:
    queries = board_queries()
    assert len(queries) > 100
    assert await until_all_have_data(scraped, queries) == []


@pytest.mark.asyncio(loop_scope="module")
async def test_every_recording_rule_has_data_and_no_rule_an_error(scraped: Server) -> None:
    assert await until_all_have_data(scraped, sorted(rules.recorded())) == []
    groups = (await asyncio.to_thread(scraped.get, "rules"))["groups"]
    evaluated = [rule for group in groups for rule in group["rules"]]
    assert len(evaluated) == len(list(rules.rules()))
    faults = {rule["name"]: rule.get("lastError") for rule in evaluated if rule["health"] == "err"}
    assert faults == {}


@pytest.mark.asyncio(loop_scope="module")
async def test_labels_that_are_stored_are_those_that_are_declared(scraped: Server) -> None:
    """Nothing of ours clashes with a label of the scraper's, which would be stored as `exported_...`."""
    entries = metric_catalog.exported()
    # No operator with a cluster is scraped here: these are of pods with nodes, of owner labels, and of Leases.
    of_clusters = (
        "rljob_owner_info",
        "rljob_usage_gpu_seconds",
        "rljob_usage_cpu_core_seconds",
        "rljob_operator_leader",
    )
    every = {name: entry for entry in entries.values() for name in metric_catalog.series(entry)}
    declared = [name for name in every if name not in of_clusters]
    assert await until_all_have_data(scraped, [f"count({name})" for name in declared]) == []
    stored = await asyncio.to_thread(scraped.get, "series", **{"match[]": '{__name__=~"rljob_.+"}'})
    added = {"__name__", "instance", "job", "namespace", "pod", "le"}
    more = {labels["__name__"]: set(labels) - added - set(every[labels["__name__"]].labels) for labels in stored}
    assert {name: labels for name, labels in more.items() if labels} == {}


@pytest.mark.asyncio(loop_scope="module")
async def test_an_alert_fires_for_the_job_that_failed_and_not_for_the_other(scraped: Server) -> None:
    firing = 'ALERTS{alertname="RLJobFailed", alertstate="firing"}'
    assert await until_all_have_data(scraped, [firing]) == []
    told = await asyncio.to_thread(scraped.query, firing)
    assert [sample["metric"]["rljob"] for sample in told] == [full_pages.FAILED]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_query_that_no_process_answers_has_no_data_and_one_that_is_broken_is_an_error(scraped: Server) -> None:
    assert await until_all_have_data(scraped, ["rljob_step"]) == []
    assert await asyncio.to_thread(scraped.query, "rljob_stepp") == []
    with pytest.raises(PromtoolError, match=re.escape("parse error")):
        await asyncio.to_thread(scraped.query, "sum by (rljob) (rljob_step")


def test_queries_are_those_of_the_job_alone() -> None:
    """A variable that stays would be compared as text, and would have no data for a reason of the test's own."""
    left = {query for query in board_queries() if "$" in query and "=~" not in query}
    assert left == set()
    assert {selector.name for query in board_queries() for selector in promql.selectors(query)}
