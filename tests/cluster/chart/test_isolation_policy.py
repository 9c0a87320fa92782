"""The ValidatingAdmissionPolicies: what a labelled namespace admits, and what the operator's account may write; each
rule with an object that breaks it.
"""

import copy
import functools
import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from rljob_api import cluster_placement, enums, resolve
from rljob_api.validation import definitions
from rljob_api.validation.load import load_manifest
from rljob_operator.resources import children, inputs
from rljob_testing import examples
from rljob_testing.charts import Helm
from rljob_testing.cluster import manifests
from rljob_testing.cluster.light import LightCluster

GOLDEN = pathlib.Path(__file__).parents[2] / "unit" / "rljob_operator" / "resources" / "golden" / "workloads.yaml"
NAMESPACE, FREE = "guarded", "free"
OPERATOR = "system:serviceaccount:rljob-system:rljob-operator"
_CONTROLLERS = {
    kind: f"system:serviceaccount:kube-system:{kind.lower()}-controller"
    for kind in ("ReplicaSet", "StatefulSet", "Job", "Deployment", "DaemonSet")
}
_MAKERS = {"coordinator": "StatefulSet", "rollout": "ReplicaSet", "verifier": "ReplicaSet", "trainer": "Job"}
_EFFECTIVE_S = 30.0
Pod = dict[str, Any]


@functools.cache
def _golden() -> list[Any]:
    return list(yaml.safe_load_all(GOLDEN.read_text()))


def _pod(role: str) -> Pod:
    """Return the pod that a job's workload of a role makes."""
    (template,) = (
        each["spec"]["template"]
        for each in copy.deepcopy(_golden())
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


def _both(*changes: Callable[[Pod], None]) -> Callable[[Pod], None]:
    def change(pod: Pod) -> None:
        for each in changes:
            each(pod)

    return change


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
    "Secret": (_added("volumes", {"name": "s", "secret": {"secretName": "prod-db"}}), "no Secret may be mounted"),
    "Secret under our volume's name": (
        _added("volumes", {"name": "rljob-tls", "secret": {"secretName": "addition-cpu-tls-trainer"}}),
        "no Secret may be mounted",
    ),
    "projected Secret": (
        _added("volumes", {"name": "p", "projected": {"sources": [{"secret": {"name": "prod-db"}}]}}),
        "projected Secrets",
    ),
    "driver's volume": (_added("volumes", {"name": "c", "csi": {"driver": "secrets-store.csi.k8s.io"}}), "not csi"),
    "claimed device": (
        _changed("resourceClaims", to=[{"name": "gpu", "resourceClaimName": "one"}]),
        "resourceClaims are not allowed",
    ),
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
    "root user": (_changed(*BOX, "securityContext", "runAsUser", to=0), "runAsNonRoot"),
    "root allowed": (_changed("securityContext", "runAsNonRoot", to=False), "runAsNonRoot"),
    "no filter": (_dropped("securityContext", "seccompProfile"), "seccomp profile RuntimeDefault"),
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
    "added capability": (
        _changed(*BOX, "securityContext", "capabilities", "add", to=["SYS_ADMIN"]),
        "containers may add no capability",
    ),
    "no filter": (_changed("securityContext", "seccompProfile", to={"type": "Unconfined"}), "profile Unconfined"),
    "container without a filter": (
        _changed(*BOX, "securityContext", "seccompProfile", to={"type": "Unconfined"}),
        "seccomp profile Unconfined",
    ),
    "no AppArmor": (
        _changed("securityContext", "appArmorProfile", to={"type": "Unconfined"}),
        "AppArmor profile Unconfined",
    ),
    "SELinux of another kind": (
        _changed(*BOX, "securityContext", "seLinuxOptions", to={"type": "spc_t"}),
        "SELinux options",
    ),
    "process table": (
        _both(_changed("hostUsers", to=False), _changed(*BOX, "securityContext", "procMount", to="Unmasked")),
        "no procMount but Default",
    ),
    "host's message queues": (_changed("hostIPC", to=True), "host namespaces"),
    "host network": (_changed("hostNetwork", to=True), "host namespaces"),
    "host processes": (_changed("hostPID", to=True), "host namespaces"),
    "host path": (_added("volumes", {"name": "h", "hostPath": {"path": "/"}}), "hostPath"),
    "host port": (_changed(*BOX, "ports", to=[{"containerPort": 80, "hostPort": 80}]), "host ports"),
    "sysctl": (
        _changed("securityContext", "sysctls", to=[{"name": "kernel.shm_rmid_forced", "value": "1"}]),
        "sysctls",
    ),
}


# What no one but the operator writes, with who tries: kind of the object and of its controller.
UNTRUSTED = (
    ("Deployment", "", ""),
    ("StatefulSet", "", ""),
    ("Job", "", ""),
    ("ReplicaSet", "", ""),
    ("ReplicaSet", "Deployment", ""),
    ("Deployment", "RLJob", ""),
    ("Deployment", "", OPERATOR),
    ("ReplicaSet", "ReplicaSet", _CONTROLLERS["Deployment"]),
)


@pytest.fixture(scope="module")
def guarded(chart_cluster: LightCluster, helm: Helm) -> LightCluster:
    """Both namespaces, the operator's rights, and the policies once they act."""
    for name in (NAMESPACE, FREE, "rljob-system"):
        assert chart_cluster.kubectl("create", "namespace", name).returncode == 0
    assert chart_cluster.kubectl("label", "namespace", NAMESPACE, "rljob.dev/enforce-isolation=true").returncode == 0
    values = {"isolationPolicy": {"runtimeClasses": ["gvisor"]}, "jobs": {"runtimeClasses": ["sand"]}}
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ClusterRole", "ClusterRoleBinding")
    made = [each for each in helm.template(values) if each["kind"] in kinds]
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
    _wait_until(lambda: "written by the rljob operator" in (_refusal(chart_cluster, _workload("Job")) or ""))
    _wait_until(lambda: "controls" in (_refusal(chart_cluster, _object("ConfigMap", owner=""), as_=OPERATOR) or ""))
    return chart_cluster


def _wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _EFFECTIVE_S
    while not holds():
        assert time.monotonic() < deadline, "the policy does not act"
        time.sleep(0.5)


def _refusal(cluster: LightCluster, raw: Pod, namespace: str = NAMESPACE, *, as_: str = "") -> str | None:
    who = [f"--as={as_}"] if as_ else []
    answer = cluster.kubectl("create", "--dry-run=server", *who, "-n", namespace, "-f", "-", stdin=json.dumps(raw))
    return None if answer.returncode == 0 else answer.stderr


def _owner(kind: str, uid: str = "1-2-3") -> dict[str, object]:
    groups = {"RLJob": "rljob.dev/v1alpha1", "Job": "batch/v1"}
    version = groups.get(kind, "apps/v1")
    return {"apiVersion": version, "kind": kind, "name": "run", "uid": uid, "controller": True}


def _stored_job(cluster: LightCluster) -> str:
    """Create the job that the objects here name as their owner, and return its uid."""
    assert cluster.kubectl("apply", "--server-side", "-f", str(definitions.ROOT / "crds")).returncode == 0
    manifests.establish(cluster)
    job = json.dumps(manifests.job("run", {"suspend": True}))
    created = cluster.kubectl("create", "-n", NAMESPACE, "-f", "-", "-o", "json", stdin=job)
    assert created.returncode == 0, created.stderr
    return str(json.loads(created.stdout)["metadata"]["uid"])


def _made(role: str) -> tuple[Pod, str]:
    """Return the pod of a role as a controller of Kubernetes makes it, and that controller's account."""
    kind = _MAKERS[role]
    pod = _pod("rollout" if role == "trainer" else role)
    pod["metadata"] |= {"ownerReferences": [_owner(kind)]}
    pod["metadata"]["labels"] = {**pod["metadata"]["labels"], "rljob.dev/role": role}
    return pod, _CONTROLLERS[kind]


def _workload(kind: str, owner: str = "", *, role: str = "rollout", name: str = "run-rollout") -> Pod:
    pod = _pod("verifier" if role == "verifier" else "rollout")
    labels = {"app.kubernetes.io/managed-by": "rljob-operator"}
    metadata: Pod = {"name": name, "labels": labels, "ownerReferences": [_owner(owner)] if owner else []}
    template = {"metadata": {"labels": {**pod["metadata"]["labels"], "rljob.dev/role": role}}, "spec": pod["spec"]}
    spec: Pod = {"template": template}
    if kind == "Job":
        template["spec"] = {**pod["spec"], "restartPolicy": "Never"}
    else:
        spec |= {"replicas": 0, "selector": {"matchLabels": {"rljob.dev/role": role}}}
        spec |= {"serviceName": "run"} if kind == "StatefulSet" else {}
    return {"apiVersion": "batch/v1" if kind == "Job" else "apps/v1", "kind": kind, "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("role", list(_MAKERS))
def test_pods_of_a_job_are_admitted(guarded: LightCluster, role: str) -> None:
    pod, controller = _made(role)
    assert _refusal(guarded, pod, as_=controller) is None


def _of_operator(example: str) -> list[Pod]:
    """Return the templates that the operator makes of an example's job with certificates, Secrets and all roles."""
    job = load_manifest((examples.EXAMPLES / example).read_text())
    metadata = job.metadata.model_copy(update={"uid": "1-2-3", "namespace": NAMESPACE})
    job = job.model_copy(update={"metadata": metadata})
    files = cluster_placement.tls_files("cluster.local")
    placed = cluster_placement.cluster_placement(job, verifier_cores=2, tls=files)
    made = inputs.Inputs(
        job=job, configs=resolve.resolve(job, placed), images=dict.fromkeys(enums.Role, "example/rljob:1")
    )
    every = children.workloads(made, attempt=1, rollouts=1)
    return [each for each in every if each["kind"] in ("Deployment", "StatefulSet", "Job")]


@pytest.mark.parametrize(
    ("example", "role"),
    [
        ("addition-agents-cpu.yaml", "agents"),
        ("addition-judge-cpu.yaml", "judge"),
        ("shell-tasks-cpu.yaml", "environment"),
    ],
)
def test_pods_that_the_operator_makes_of_an_example_are_admitted(
    guarded: LightCluster, example: str, role: str
) -> None:
    workloads = _of_operator(example)
    assert role in {each["metadata"]["labels"]["rljob.dev/role"] for each in workloads}
    for each in workloads:
        kind = {"Deployment": "ReplicaSet"}.get(each["kind"], each["kind"])
        template = each["spec"]["template"]
        spec = {key: value for key, value in template["spec"].items() if key != "serviceAccountName"}
        metadata = {"generateName": "x-", "labels": template["metadata"]["labels"], "ownerReferences": [_owner(kind)]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        assert _refusal(guarded, pod, as_=_CONTROLLERS[kind]) is None


@pytest.mark.parametrize("case", STRICT)
def test_a_verifiers_pod_that_is_less_confined_is_refused(guarded: LightCluster, case: str) -> None:
    pod, controller = _made("verifier")
    STRICT[case][0](pod)
    refusal = _refusal(guarded, pod, as_=controller)
    assert refusal is not None
    assert STRICT[case][1] in refusal


@pytest.mark.covers("security")
def test_a_verifiers_own_certificate_is_mounted(guarded: LightCluster) -> None:
    pod, controller = _made("verifier")
    pod["spec"]["volumes"] = [each for each in pod["spec"]["volumes"] if each["name"] != "rljob-tls"]
    name = f"{pod['metadata']['labels']['rljob.dev/job']}-tls-verifier"
    pod["spec"]["volumes"].append({"name": "rljob-tls", "secret": {"secretName": name}})
    assert _refusal(guarded, pod, as_=controller) is None


@pytest.mark.parametrize("role", ["rollout", "verifier"])
@pytest.mark.parametrize("case", BASELINE)
def test_what_reaches_the_node_is_refused_for_every_role(guarded: LightCluster, case: str, role: str) -> None:
    pod, controller = _made(role)
    BASELINE[case][0](pod)
    refusal = _refusal(guarded, pod, as_=controller)
    assert refusal is not None
    assert BASELINE[case][1] in refusal


def test_a_pod_without_our_label_is_the_strict_case(guarded: LightCluster) -> None:
    pod, controller = _made("rollout")
    del pod["metadata"]["labels"]["rljob.dev/role"]
    assert _refusal(guarded, pod, as_=controller) is not None


@pytest.mark.covers("security")
def test_the_label_of_a_trusted_role_proves_nothing_on_a_pod_that_anybody_made(guarded: LightCluster) -> None:
    pod, controller = _made("trainer")
    assert _refusal(guarded, pod, as_=controller) is None
    for other in ("", OPERATOR, _CONTROLLERS["DaemonSet"]):
        refusal = _refusal(guarded, pod, as_=other)
        assert refusal is not None, other
        assert "must be" in refusal or "forbidden" in refusal
    del pod["metadata"]["ownerReferences"]
    assert _refusal(guarded, pod, as_=controller) is not None


@pytest.mark.covers("security")
@pytest.mark.parametrize(("kind", "owner", "by"), UNTRUSTED)
def test_nobody_but_the_operator_writes_a_template_that_is_trusted(
    guarded: LightCluster, kind: str, owner: str, by: str
) -> None:
    refusal = _refusal(guarded, _workload(kind, owner), as_=by)
    assert refusal is not None
    assert "written by the rljob operator" in refusal or "an RLJob controls" in refusal


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "Job"])
def test_the_operator_writes_templates_of_jobs(guarded: LightCluster, kind: str) -> None:
    assert _refusal(guarded, _workload(kind, "RLJob"), as_=OPERATOR) is None


def test_the_controller_of_deployments_copies_a_template(guarded: LightCluster) -> None:
    copied = _workload("ReplicaSet", "Deployment", name="run-rollout-5d4")
    assert _refusal(guarded, copied, as_=_CONTROLLERS["Deployment"]) is None


def test_anybody_writes_a_template_whose_pods_are_confined(guarded: LightCluster) -> None:
    assert _refusal(guarded, _workload("Deployment", role="verifier")) is None


def test_anybody_with_the_right_changes_a_trusted_workload_but_for_its_template(guarded: LightCluster) -> None:
    made = _workload("Deployment", name="run-kept")
    # What has an owner that is not there goes as garbage, as soon as the collector looks at it.
    made["metadata"]["ownerReferences"] = [_owner("RLJob", _stored_job(guarded))]
    created = guarded.kubectl("create", f"--as={OPERATOR}", "-n", NAMESPACE, "-f", "-", stdin=json.dumps(made))
    assert created.returncode == 0, created.stderr

    def patched(patch: dict[str, object]) -> str | None:
        arguments = ("patch", "deployment", "run-kept", "-n", NAMESPACE, "--type=merge", "--dry-run=server")
        done = guarded.kubectl(*arguments, "-p", json.dumps(patch))
        return None if done.returncode == 0 else done.stderr

    assert patched({"metadata": {"annotations": {"team": "a"}}, "spec": {"replicas": 2}}) is None
    refusal = patched({"spec": {"template": {"spec": {"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["x"]}]}}}})
    assert refusal is not None
    assert "written by the rljob operator" in refusal


@pytest.mark.parametrize("name", ["gvisor", "sand"])
def test_a_runtime_class_that_is_listed_for_jobs_or_for_the_namespace_is_admitted(
    guarded: LightCluster, name: str
) -> None:
    pod, controller = _made("verifier")
    pod["spec"]["runtimeClassName"] = name
    assert _refusal(guarded, pod, as_=controller) is None


def test_namespaces_without_the_label_are_left_alone(guarded: LightCluster) -> None:
    pod = copy.deepcopy(_pod("verifier"))
    STRICT["writable root"][0](pod)
    assert _refusal(guarded, pod, FREE) is None
    assert _refusal(guarded, _workload("Deployment"), FREE) is None


def _object(kind: str, *, owner: str = "RLJob", name: str = "run-config", **more: object) -> Pod:
    versions = {"PodDisruptionBudget": "policy/v1", "NetworkPolicy": "networking.k8s.io/v1"}
    metadata: Pod = {"name": name, "labels": {"app.kubernetes.io/managed-by": "rljob-operator"}}
    metadata["ownerReferences"] = [_owner(owner)] if owner else []
    return {"apiVersion": versions.get(kind, "v1"), "kind": kind, "metadata": metadata, **more}


def _unlabelled() -> Pod:
    found = _object("ConfigMap")
    del found["metadata"]["labels"]
    return found


def _tls(name: str = "run-tls-rollout", type_: str = "kubernetes.io/tls") -> Pod:
    found = _object("Secret", name=name, type=type_, data={"tls.crt": "", "tls.key": ""})
    found["metadata"]["annotations"] = {"kubernetes.io/service-account.name": "default"}
    return found


def _with(change: Callable[[Pod], None], kind: str = "Deployment") -> Pod:
    found = _workload(kind, "RLJob")
    change(found["spec"]["template"])
    return found


_TOKEN = {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}
_PORTS = [{"port": 80}]
BOUNDS: dict[str, tuple[Pod, str]] = {
    "object of nobody": (_object("ConfigMap", owner=""), "an RLJob controls"),
    "object of another kind of owner": (_object("ConfigMap", owner="Deployment"), "an RLJob controls"),
    "object without our label": (_unlabelled(), "labels what it writes"),
    "object of another name": (_object("ConfigMap", name="other"), "names objects after their job"),
    "Secret of another name": (_tls(name="run-db"), "job's certificates alone"),
    "account's token": (_tls(type_="kubernetes.io/service-account-token"), "job's certificates alone"),
    "account with a token": (_object("ServiceAccount", name="run-rollout"), "have no token"),
    "pods with a token": (_with(_changed("automountServiceAccountToken", to=True)), "no token of an account"),
    "pods with a projected token": (_with(_added("volumes", _TOKEN)), "no token of an account"),
    "pods with the node's files": (
        _with(_added("volumes", {"name": "h", "hostPath": {"path": "/"}})),
        "nothing of their node",
    ),
    "pods of the node's network": (_with(_changed("hostNetwork", to=True)), "nothing of their node"),
    "privileged pods": (
        _with(_changed(*BOX, "securityContext", to={"privileged": True}), "StatefulSet"),
        "nothing of their node",
    ),
    "pods with a capability": (
        _with(_changed(*BOX, "securityContext", "capabilities", "add", to=["SYS_ADMIN"]), "Job"),
        "nothing of their node",
    ),
    "Service that is open to the world": (
        _object("Service", name="run-coordinator", spec={"type": "LoadBalancer", "ports": _PORTS}),
        "inside of the cluster",
    ),
    "Service of another's address": (
        _object("Service", name="run-coordinator", spec={"externalIPs": ["203.0.113.1"], "ports": _PORTS}),
        "inside of the cluster",
    ),
}


@pytest.mark.covers("security")
@pytest.mark.parametrize("case", BOUNDS)
def test_the_operators_account_writes_objects_of_jobs_alone(guarded: LightCluster, case: str) -> None:
    raw, said = BOUNDS[case]
    refusal = _refusal(guarded, raw, FREE, as_=OPERATOR)
    assert refusal is not None
    assert said in refusal


@pytest.mark.parametrize(
    "raw",
    [
        _object("ConfigMap"),
        _tls(),
        _tls(name="run-ca"),
        _object("ServiceAccount", name="run-rollout", automountServiceAccountToken=False),
        _object("Service", name="run-coordinator", spec={"clusterIP": "None", "ports": _PORTS}),
        _object("PodDisruptionBudget", name="run-rollout", spec={"maxUnavailable": 1}),
    ],
    ids=lambda raw: f"{raw['kind']} {raw['metadata']['name']}",
)
def test_the_operators_account_writes_what_jobs_need(guarded: LightCluster, raw: Pod) -> None:
    assert _refusal(guarded, raw, FREE, as_=OPERATOR) is None


def test_the_operators_account_writes_nothing_in_the_clusters_own_namespaces(guarded: LightCluster) -> None:
    refusal = _refusal(guarded, _object("ConfigMap"), "kube-system", as_=OPERATOR)
    assert refusal is not None
    assert "cluster's own namespaces" in refusal


def test_the_operators_account_takes_over_and_deletes_nothing_of_others(guarded: LightCluster) -> None:
    # Deletions of PodDisruptionBudgets are among its rights.
    theirs = _object("PodDisruptionBudget", owner="", name="run-theirs", spec={"maxUnavailable": 1})
    made = guarded.kubectl("create", "-n", FREE, "-f", "-", stdin=json.dumps(theirs))
    assert made.returncode == 0, made.stderr
    who = (f"--as={OPERATOR}", "-n", FREE)
    patch = json.dumps({"metadata": {"ownerReferences": [_owner("RLJob")]}})
    taken = guarded.kubectl("patch", "pdb", "run-theirs", *who, "--type=merge", "-p", patch)
    assert "takes no object over" in taken.stderr
    deleted = guarded.kubectl("delete", "pdb", "run-theirs", *who)
    assert "an RLJob controls" in deleted.stderr


def test_the_operators_account_deletes_pods_of_jobs_and_no_others(guarded: LightCluster) -> None:
    ours = {"rljob.dev/uid": "1-2-3", "rljob.dev/role": "rollout"}
    for name, labels in (("run-theirs", {"rljob.dev/role": "rollout"}), ("run-ours", ours)):
        pod = {**_pod("rollout"), "metadata": {"name": name, "labels": labels}}
        made = guarded.kubectl("create", "-n", FREE, "-f", "-", stdin=json.dumps(pod))
        assert made.returncode == 0, made.stderr
        deleted = guarded.kubectl("delete", "pod", name, f"--as={OPERATOR}", "-n", FREE, "--wait=false")
        assert (deleted.returncode == 0) is (labels is ours), deleted.stderr
        assert ("pods of jobs alone" in deleted.stderr) is (labels is not ours)


def test_others_are_not_bound_by_what_binds_the_operators_account(guarded: LightCluster) -> None:
    assert _refusal(guarded, _object("ConfigMap", owner="", name="other"), FREE) is None
