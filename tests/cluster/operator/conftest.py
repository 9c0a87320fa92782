"""Control planes of their own: one that asks a metrics API behind it and records what the operator's account asks for,
one with a scheduler.
"""

import json
from collections.abc import Iterator

import pytest

from rljob_testing import operator_installation, operator_metrics_api
from rljob_testing.charts import Helm, program_or_skip
from rljob_testing.cluster import binaries
from rljob_testing.cluster import scheduled as scheduling
from rljob_testing.cluster.light import LightCluster, Network
from rljob_testing.operator_audit import AuditLog
from rljob_testing.operator_installation import Installed


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """The cluster; the metrics API is served and available."""
    for name in (*binaries.LIGHT, "helm"):
        program_or_skip(name)
    folder = tmp_path_factory.mktemp("installed")
    audit = AuditLog(folder / "audit", user=operator_installation.USER)
    pki = folder / "plane" / "pki"
    # Refuses children to whom may not set their owner's finalizers: some clusters do.
    plugins = {"enable-admission-plugins": "OwnerReferencesPermissionEnforcement"}
    server = {**audit.flags, **plugins, **operator_metrics_api.proxy_flags(pki)}
    manager = {"horizontal-pod-autoscaler-sync-period": "2s"}
    flags = {"kube-apiserver": server, "kube-controller-manager": manager}
    cluster = LightCluster(folder / "plane", Network(flags=flags))
    try:
        operator_metrics_api.certify(cluster.prepare())
        cluster.launch()
        kubeconfig = operator_installation.install(cluster, Helm(program_or_skip("helm"), folder))
        with operator_metrics_api.serving(pki) as metrics:
            objects = {"apiVersion": "v1", "kind": "List", "items": metrics.objects(pki / "ca.crt")}
            applied = cluster.kubectl("apply", "-f", "-", stdin=json.dumps(objects))
            assert applied.returncode == 0, applied.stderr
            name = f"apiservice/{operator_metrics_api.VERSION}.{operator_metrics_api.GROUP}"
            waited = cluster.kubectl("wait", "--for=condition=Available", "--timeout=50s", name)
            assert waited.returncode == 0, waited.stderr
            yield Installed(cluster, kubeconfig, audit, metrics)
    finally:
        cluster.down()


@pytest.fixture(scope="session")
def scheduled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LightCluster]:
    """A cluster with the real scheduler; tests leave no pod behind."""
    for name in scheduling.PROGRAMS:
        program_or_skip(name)
    with scheduling.scheduled(tmp_path_factory.mktemp("scheduled")) as cluster:
        yield cluster
