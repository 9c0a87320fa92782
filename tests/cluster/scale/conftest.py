"""A control plane with stand-in kubelets and the operator as a process with its own account: one story of many jobs."""

import contextlib
import os
import pathlib
import platform
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from rljob_testing import operator_installation, operator_nodes
from rljob_testing.charts import Helm, program_or_skip
from rljob_testing.cluster import binaries, processes
from rljob_testing.cluster.light import LightCluster, Network
from rljob_testing.operator_api import ClusterApi
from rljob_testing.operator_audit import AuditLog
from rljob_testing.operator_load import spread, standing_in
from rljob_testing.operator_process import OperatorProcess
from rljob_testing.operator_stage import IMAGES
from rljob_testing.operator_table import CHOSEN, ENCRYPTED, ENDING, RUNNING, SWITCH, Size, Table

LIMITS: dict[str, Any] = yaml.safe_load(pathlib.Path(__file__).with_name("thresholds.yaml").read_text())
# The cluster's own controllers must not be what is measured.
_FAST = {
    "kube-api-qps": "2000",
    "kube-api-burst": "4000",
    "concurrent-deployment-syncs": "20",
    "concurrent-replicaset-syncs": "20",
    "concurrent-statefulset-syncs": "20",
    "concurrent-job-syncs": "20",
    "concurrent-gc-syncs": "40",
}


@pytest.fixture(scope="session")
def chosen() -> int:
    """The size of the story: a key of `sizes`."""
    return CHOSEN


@pytest.fixture(scope="module")
def scale_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LightCluster, AuditLog]]:
    """An API server that records what the operator's account asks for."""
    if os.environ.get("CI") != "true" and SWITCH not in os.environ:
        pytest.skip(f"the table at scale takes five minutes and was not asked for ({SWITCH}=200)")
    for name in (*binaries.LIGHT, "helm"):
        program_or_skip(name)
    folder = tmp_path_factory.mktemp("scale")
    audit = AuditLog(folder / "audit", user=operator_installation.USER, bodies_of=ENDING)
    flags = {"kube-apiserver": audit.flags, "kube-controller-manager": _FAST}
    cluster = LightCluster(folder / "plane", Network(flags=flags))
    try:
        cluster.up()
        yield cluster, audit
    finally:
        cluster.down()


@pytest.fixture(scope="module")
def figures(
    scale_cluster: tuple[LightCluster, AuditLog], tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, float]:
    """Every figure of the story at the chosen size; it is printed with the machine that it was measured on."""
    cluster, audit = scale_cluster
    folder = tmp_path_factory.mktemp("operator")
    helm = Helm(program_or_skip("helm"), folder)
    kubeconfig = operator_installation.install(cluster, helm)
    # The client's limits are those of the chart.
    settings = {
        "jobs": {"images": dict(IMAGES)},
        "leaderElection": {"enabled": True, "namespace": operator_installation.NAMESPACE},
    }
    with (
        contextlib.closing(ClusterApi(cluster)) as api,
        standing_in() as (_, running),
        standing_in() as (ending, ends),
        operator_nodes.played(cluster),
    ):
        size = Size(**LIMITS["sizes"][CHOSEN])
        of_many = {each: running for name in (RUNNING, ENCRYPTED) for each in spread(name, size.namespaces)}
        coordinators = {**of_many, ENDING: ends}
        operator = OperatorProcess(
            folder, kubeconfig=kubeconfig, coordinators=coordinators, settings=settings, identity="container"
        )
        try:
            operator.start()
            operator.ready()
            found = Table(
                api=api,
                operator=operator,
                audit=audit,
                ending=ending,
                size=size,
                cpu_seconds=lambda: processes.cpu_seconds(cluster.run_dir),
            ).tell()
        finally:
            operator.end()
    _print(found)
    return found


def _print(found: Mapping[str, float]) -> None:
    print(f"\n{CHOSEN} jobs; {os.cpu_count()} processors, {platform.processor() or platform.machine()}")
    print(f"Kubernetes {binaries.KUBERNETES_VERSION}, Python {platform.python_version()}")
    for name, value in found.items():
        limit = LIMITS["rows"].get(name, {})
        bound = limit.get("at_most", limit.get("at_least", {})).get(CHOSEN)
        print(f"{limit.get('row', ''):5} {name:42} {value:10.2f}" + ("" if bound is None else f"  limit {bound}"))
