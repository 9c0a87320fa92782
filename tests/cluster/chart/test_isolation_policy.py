"""The ValidatingAdmissionPolicy: what a labelled namespace admits, each rule with a pod that breaks it."""

import copy
import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from rljob_testing.charts import Helm
from rljob_testing.cluster.light import LightCluster

GOLDEN = pathlib.Path(__file__).parents[2] / "unit" / "resources" / "golden" / "workloads.yaml"
NAMESPACE, FREE = "guarded", "free"
_EFFECTIVE_S = 30.0
Pod = dict[str, Any]


def _pod(role: str) -> Pod:
    """Return the pod that a job's workload of a role makes."""
    (template,) = (
        each["spec"]["template"]
        for each in yaml.safe_load_all(GOLDEN.read_text())
        if each["kind"] in ("Deployment", "StatefulSet") and each["metadata"]["labels"]["rljob.dev/role"] == role
    )
    # Accounts are another matter: the default one is there.
    spec = {key: value for key, value in template["spec"].items() if key != "serviceAccountName"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": f"{role}-", "labels": template["metadata"]["labels"]},
        "spec": spec,
    }


def _changed(*path: str | int, to: object) -> Callable[[Pod], None]:
    def change(pod: Pod) -> None:
        node: Any = pod["spec"]
        for key in path[:-1]:
            node = node[key] if isinstance(key, int) else node.setdefault(key, {})
        node[path[-1]] = to

    return change


def _dropped(*path: str | int) -> Callable[[Pod], None]:
    def change(pod: Pod) -> None:
        node: Any = pod["spec"]
        for key in path[:-1]:
            node = node[key]
        del node[path[-1]]

    return change


def _added(key: str, value: object) -> Callable[[Pod], None]:
    return lambda pod: pod["spec"].setdefault(key, []).append(value)


BOX = ("containers", 0)
# What is changed in a verifier's pod, and what the refusal says.
STRICT: dict[str, tuple[Callable[[Pod], None], str]] = {
    "token": (_changed("automountServiceAccountToken", to=True), "automountServiceAccountToken must be false"),
    "projected token": (
        _added("volumes", {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}),
        "projected service account tokens",
    ),
    "service links": (_changed("enableServiceLinks", to=True), "enableServiceLinks must be false"),
    "shared processes": (_changed("shareProcessNamespace", to=True), "shareProcessNamespace"),
    "unbounded emptyDir": (_added("volumes", {"name": "u", "emptyDir": {}}), "must have a sizeLimit"),
    "node's file system": (
        _added("volumes", {"name": "n", "nfs": {"server": "a", "path": "/"}}),
        "restricted Pod Security Standard",
    ),
    "long grace": (_changed("terminationGracePeriodSeconds", to=11), "at most 10"),
    "unlisted runtime class": (_changed("runtimeClassName", to="other"), "isolationPolicy.runtimeClasses"),
    "writable root": (_changed(*BOX, "securityContext", "readOnlyRootFilesystem", to=False), "readOnlyRootFilesystem"),
    "escalation": (_changed(*BOX, "securityContext", "allowPrivilegeEscalation", to=True), "allowPrivilegeEscalation"),
    "kept capabilities": (_dropped(*BOX, "securityContext", "capabilities"), "drop ALL"),
    "added capability": (_changed(*BOX, "securityContext", "capabilities", "add", to=["NET_RAW"]), "drop ALL"),
    "root user": (_changed(*BOX, "securityContext", "runAsUser", to=0), "runAsNonRoot"),
    "root allowed": (_changed("securityContext", "runAsNonRoot", to=False), "runAsNonRoot"),
    "no filter": (_changed("securityContext", "seccompProfile", to={"type": "Unconfined"}), "seccomp"),
    "Secret variable": (
        _changed(*BOX, "env", to=[{"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]),
        "no Secret",
    ),
    "Secret variables": (_changed(*BOX, "envFrom", to=[{"secretRef": {"name": "s"}}]), "no Secret"),
    "requests below limits": (_changed(*BOX, "resources", "requests", "cpu", to="500m"), "requests equal to limits"),
    "no memory limit": (_dropped(*BOX, "resources", "limits", "memory"), "requests equal to limits"),
    "accelerator": (_changed(*BOX, "resources", "limits", "nvidia.com/gpu", to="1"), "no accelerator"),
    "loose init container": (
        _changed("initContainers", 0, "securityContext", "readOnlyRootFilesystem", to=False),
        "initContainers must have a readOnlyRootFilesystem",
    ),
}
# What no pod of the namespace may have, whatever its role.
BASELINE: dict[str, tuple[Callable[[Pod], None], str]] = {
    "privileged": (
        _changed(*BOX, "securityContext", to={"privileged": True, "allowPrivilegeEscalation": True}),
        "privileged containers",
    ),
    "host network": (_changed("hostNetwork", to=True), "host namespaces"),
    "host processes": (_changed("hostPID", to=True), "host namespaces"),
    "host path": (_added("volumes", {"name": "h", "hostPath": {"path": "/"}}), "hostPath"),
    "host port": (_changed(*BOX, "ports", to=[{"containerPort": 80, "hostPort": 80}]), "host ports"),
    "sysctl": (
        _changed("securityContext", "sysctls", to=[{"name": "kernel.shm_rmid_forced", "value": "1"}]),
        "sysctls",
    ),
}


@pytest.fixture(scope="module")
def guarded(chart_cluster: LightCluster, helm: Helm) -> LightCluster:
    """Both namespaces, and the policy once it acts."""
    for name in (NAMESPACE, FREE):
        assert chart_cluster.kubectl("create", "namespace", name).returncode == 0
    assert chart_cluster.kubectl("label", "namespace", NAMESPACE, "rljob.dev/enforce-isolation=true").returncode == 0
    values = {"isolationPolicy": {"runtimeClasses": ["gvisor"]}, "jobs": {"runtimeClasses": ["sand"]}}
    made = [each for each in helm.template(values) if each["kind"].startswith("ValidatingAdmissionPolicy")]
    classes = [
        {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": name}
        for name in ("gvisor", "sand", "other")
    ]
    applied = chart_cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([*made, *classes]))
    assert applied.returncode == 0, applied.stderr
    change, said = STRICT["token"]
    bad = _pod("verifier")
    change(bad)
    # A namespace gets its account, and the API server its policy, a moment later.
    _wait_until(lambda: _refusal(chart_cluster, _pod("rollout"), FREE) is None)
    _wait_until(lambda: said in (_refusal(chart_cluster, bad) or ""))
    return chart_cluster


def _wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _EFFECTIVE_S
    while not holds():
        assert time.monotonic() < deadline, "the policy does not act"
        time.sleep(0.5)


def _refusal(cluster: LightCluster, pod: Pod, namespace: str = NAMESPACE) -> str | None:
    answer = cluster.kubectl("create", "--dry-run=server", "-n", namespace, "-f", "-", stdin=json.dumps(pod))
    return None if answer.returncode == 0 else answer.stderr


@pytest.mark.parametrize("role", ["coordinator", "rollout", "verifier"])
def test_pods_of_a_job_are_admitted(guarded: LightCluster, role: str) -> None:
    assert _refusal(guarded, _pod(role)) is None


@pytest.mark.parametrize("case", STRICT)
def test_a_verifiers_pod_that_is_less_confined_is_refused(guarded: LightCluster, case: str) -> None:
    pod = _pod("verifier")
    STRICT[case][0](pod)
    refusal = _refusal(guarded, pod)
    assert refusal is not None
    assert STRICT[case][1] in refusal


@pytest.mark.parametrize("role", ["rollout", "verifier"])
@pytest.mark.parametrize("case", BASELINE)
def test_what_reaches_the_node_is_refused_for_every_role(guarded: LightCluster, case: str, role: str) -> None:
    pod = _pod(role)
    BASELINE[case][0](pod)
    refusal = _refusal(guarded, pod)
    assert refusal is not None
    assert BASELINE[case][1] in refusal


def test_a_pod_without_our_label_is_the_strict_case(guarded: LightCluster) -> None:
    pod = _pod("rollout")
    del pod["metadata"]["labels"]["rljob.dev/role"]
    assert _refusal(guarded, pod) is not None
    assert _refusal(guarded, _pod("rollout")) is None


@pytest.mark.parametrize("name", ["gvisor", "sand"])
def test_a_runtime_class_that_is_listed_for_jobs_or_for_the_namespace_is_admitted(
    guarded: LightCluster, name: str
) -> None:
    pod = _pod("verifier")
    pod["spec"]["runtimeClassName"] = name
    assert _refusal(guarded, pod) is None


def test_namespaces_without_the_label_are_left_alone(guarded: LightCluster) -> None:
    pod = copy.deepcopy(_pod("verifier"))
    STRICT["writable root"][0](pod)
    assert _refusal(guarded, pod, FREE) is None
