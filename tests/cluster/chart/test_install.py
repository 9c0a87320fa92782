"""The chart on a real API server: admitted whole, installed, upgraded, rolled back, uninstalled."""

import json
import pathlib
from typing import Any

import pytest
from generators import CHART

from rljob_api.validation import crd, definitions
from rljob_operator.kube import permissions
from rljob_testing.charts import CI_VALUES, Helm
from rljob_testing.cluster.light import LightCluster

NAMESPACE = "rljob-system"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:rljob-operator"


@pytest.fixture(scope="module", autouse=True)
def namespaces(chart_cluster: LightCluster) -> None:
    for name in (NAMESPACE, "team-a", "team-b"):
        assert chart_cluster.kubectl("create", "namespace", name).returncode == 0


@pytest.mark.parametrize("values", [None, *CI_VALUES], ids=lambda path: path.name if path else "defaults")
def test_the_api_server_admits_every_object(
    chart_cluster: LightCluster, helm: Helm, values: pathlib.Path | None
) -> None:
    made = helm.template(files=[values] if values else [])
    # Prometheus operator's kinds are not served here.
    served = [each for each in made if not each["apiVersion"].startswith("monitoring.coreos.com/")]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": served})
    # A pod is admitted only where its account is, and a dry run makes none.
    accounts = [each["metadata"]["name"] for each in served if each["kind"] == "ServiceAccount"]
    for name in accounts:
        assert chart_cluster.kubectl("create", "serviceaccount", name, "-n", NAMESPACE).returncode == 0
    answer = chart_cluster.kubectl(
        "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text
    )
    for name in accounts:
        assert chart_cluster.kubectl("delete", "serviceaccount", name, "-n", NAMESPACE).returncode == 0
    assert answer.returncode == 0, answer.stderr
    assert "Warning" not in answer.stderr


def test_install_upgrade_rollback_and_uninstall_leave_definition_and_jobs(
    chart_cluster: LightCluster, helm: Helm
) -> None:
    def run(*arguments: str) -> str:
        flags = (f"--namespace={NAMESPACE}", f"--kubeconfig={chart_cluster.kubeconfig}")
        return helm.run(*arguments, *flags, timeout_s=120.0)

    def get(*arguments: str) -> Any:
        answer = chart_cluster.kubectl("get", *arguments, "-o", "json")
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)

    run("install", "rljob", str(CHART))
    assert get("crd", "rljobs.rljob.dev")["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
    run("upgrade", "rljob", str(CHART), "--set", "concurrency=9")
    config = get("configmap", "rljob-operator", "-n", NAMESPACE)
    assert json.loads(config["data"]["settings.json"])["concurrency"] == 9
    run("rollback", "rljob", "1")
    config = get("configmap", "rljob-operator", "-n", NAMESPACE)
    assert json.loads(config["data"]["settings.json"])["concurrency"] == 8
    _has_its_rights(chart_cluster)
    job = (CHART / "files" / "smoke-job.yaml").read_text()
    created = chart_cluster.kubectl("create", "-n", "team-a", "-f", "-", stdin=job)
    assert created.returncode == 0, created.stderr
    run("uninstall", "rljob")
    assert get("rljob", "rljob-smoke", "-n", "team-a")["spec"]["maxSteps"] == 2
    assert get("deployments", "-n", NAMESPACE)["items"] == []
    assert chart_cluster.kubectl("get", "clusterrole", "rljob-operator").returncode != 0


def test_notes_tell_of_a_definition_that_is_another_versions(chart_cluster: LightCluster, helm: Helm) -> None:
    def notes() -> str:
        flags = (f"--namespace={NAMESPACE}", f"--kubeconfig={chart_cluster.kubeconfig}", "--dry-run=server")
        return helm.run("install", "noted", str(CHART), "--set", "crds.enabled=false", *flags, timeout_s=120.0)

    definition = chart_cluster.kubectl(
        "apply", "--server-side", "--force-conflicts", "-f", str(definitions.source("rljobs"))
    )
    assert definition.returncode == 0, definition.stderr
    assert "another version's" not in notes()
    other = f"{crd.SCHEMA_HASH}=0000000000000000"
    changed = chart_cluster.kubectl("annotate", "--overwrite", "crd", "rljobs.rljob.dev", other)
    assert changed.returncode == 0, changed.stderr
    assert "another version's" in notes()


def _has_its_rights(cluster: LightCluster) -> None:
    """Ask the API server what the operator's account may do, in one call."""
    answer = cluster.kubectl("auth", "can-i", "--list", "--no-headers", f"--as={ACCOUNT}", "-n", "team-a")
    assert answer.returncode == 0, answer.stderr
    rights = {line.split()[0]: line.rsplit("[", 1)[1].rstrip("]").split() for line in answer.stdout.splitlines()}
    for rule in permissions.RULES:
        if rule.when not in ("always", "tls"):
            continue
        for resource in rule.resources:
            name = f"{resource}.{rule.group}" if rule.group and "/" not in resource else resource
            if "/" in resource:
                kind, _, sub = resource.partition("/")
                name = f"{kind}.{rule.group}/{sub}"
            assert set(rights.get(name, ())) == set(rule.verbs), name
    assert "nodes" not in rights
    assert "pods/exec" not in rights
