"""A job with its runtime: whose value counts, what is refused, and what is wrong with a runtime by itself."""

import json
from typing import Any

import pytest
from pydantic import JsonValue

from rljob_api import errors
from rljob_api.validation import load, runtimes
from rljob_testing import examples, runtime_makers

JOB: dict[str, JsonValue] = {"maxSteps": 3, "model": {"name": "m"}, "verifier": {"rewards": []}}
ROLE_CONTAINER = "spec.containers[0]"


def box(**fields: object) -> dict[str, object]:
    """Return a template of the role's container."""
    return {"spec": {"containers": [{"name": "rljob", **fields}]}}


def test_a_value_that_the_job_leaves_out_is_the_runtimes_and_one_that_it_writes_is_its_own() -> None:
    runtime = runtime_makers.runtime(defaults={"trainer": {"nodes": 2, "processesPerNode": 8}, "seed": 5})
    outcome = runtimes.merged({**JOB, "trainer": {"nodes": 1}}, runtime)
    assert outcome.spec["trainer"] == {"nodes": 1, "processesPerNode": 8}
    assert outcome.spec["seed"] == 5
    assert outcome.origins == {
        "trainer.processesPerNode": "defaults of ClusterRLJobRuntime platform",
        "seed": "defaults of ClusterRLJobRuntime platform",
    }
    assert outcome.problems == ()


def test_a_fixed_value_counts_and_another_one_is_refused_with_both() -> None:
    runtime = runtime_makers.runtime(fixed={"security": {"networkPolicy": True}, "device": "cuda"})
    outcome = runtimes.merged({**JOB, "security": {"networkPolicy": False}}, runtime)
    assert (outcome.spec["security"], outcome.spec["device"]) == ({"networkPolicy": True}, "cuda")
    assert outcome.problems == (
        "spec.security.networkPolicy is false, but ClusterRLJobRuntime platform fixes it at true: leave it out",
    )


@pytest.mark.parametrize(("written", "fixed"), [(8, "8"), ("8", 8), ("1Gi", "1Gi")])
def test_a_quantity_is_the_same_as_a_number_and_as_a_text(written: object, fixed: object) -> None:
    limits = {"trainer": {"pod": {"resources": {"limits": {"nvidia.com/gpu": fixed}}}}}
    spec: dict[str, Any] = {"trainer": {"pod": {"resources": {"limits": {"nvidia.com/gpu": written}}}}}
    assert runtimes.merged(spec, runtime_makers.runtime(fixed=limits)).problems == ()


def test_a_list_of_the_job_takes_the_place_of_the_runtimes() -> None:
    runtime = runtime_makers.runtime(defaults={"rollout": {"pod": {"env": [{"name": "A", "value": "1"}]}}})
    spec: dict[str, Any] = {"rollout": {"pod": {"env": [{"name": "B", "value": "2"}]}}}
    assert runtimes.merged(spec, runtime).spec == spec


def test_a_section_of_another_type_has_nothing_of_the_runtimes_defaults() -> None:
    runtime = runtime_makers.runtime(defaults={"storage": {"type": "Persistent", "checkpoints": {"size": "1Gi"}}})
    outcome = runtimes.merged({"storage": {"type": "Ephemeral"}}, runtime)
    assert outcome.spec["storage"] == {"type": "Ephemeral"}
    assert outcome.origins == {}
    assert runtimes.merged({"storage": {}}, runtime).spec["storage"] == runtime.spec.defaults["storage"]


def test_merging_twice_changes_nothing() -> None:
    runtime = runtime_makers.runtime(defaults={"trainer": {"nodes": 2}}, fixed={"device": "cuda"})
    once = runtimes.merged(JOB, runtime)
    again = runtimes.merged(once.spec, runtime)
    assert (again.spec, again.problems) == (once.spec, ())


def test_a_problem_of_a_value_says_that_a_runtime_has_it() -> None:
    problems = ["spec.trainer.nodes is 2, but no", "spec.trainer.nodesX is 2, but no"]
    assert runtimes.attributed(problems, {"trainer.nodes": "fixed by RLJobRuntime r"}) == [
        "spec.trainer.nodes is 2, but no (fixed by RLJobRuntime r)",
        problems[1],
    ]


@pytest.mark.parametrize(
    ("pod", "template", "path"),
    [
        ({"env": [{"name": "A", "value": "1"}]}, box(env=[{"name": "A", "value": "2"}]), "env[A]"),
        ({"nodeSelector": {"pool": "a"}}, {"spec": {"nodeSelector": {"pool": "b"}}}, "nodeSelector.pool"),
        ({"priorityClassName": "a"}, {"spec": {"priorityClassName": "b"}}, "priorityClassName"),
        ({"affinity": {"nodeAffinity": {}}}, {"spec": {"affinity": {"podAffinity": {}}}}, "affinity"),
        (
            {"volumes": [{"name": "v", "emptyDir": {}}]},
            {"spec": {"volumes": [{"name": "v", "nfs": {"server": "s", "path": "/"}}]}},
            "volumes[v]",
        ),
        (
            {"volumeMounts": [{"name": "v", "mountPath": "/v"}]},
            box(volumeMounts=[{"name": "w", "mountPath": "/v"}]),
            "volumeMounts[/v]",
        ),
    ],
)
def test_what_a_jobs_pod_sets_against_a_template_is_refused_by_field(
    pod: dict[str, object], template: dict[str, object], path: str
) -> None:
    spec = {**JOB, "data": {"train": [{"name": "d", "path": "d"}]}, "trainer": {"pod": pod}}
    spec["verifier"] = {"rewards": [{"name": "r", "type": "exact"}]}
    document = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "j"}, "spec": spec}
    job = load.load_manifest(json.dumps(document))
    (problem,) = runtimes.template_problems(job, runtime_makers.runtime(trainer=template))
    assert problem.startswith(f"spec.trainer.pod.{path} is ")
    assert problem.endswith("ClusterRLJobRuntime platform has another in its pod template: leave it out")
    assert list(runtimes.template_problems(job, runtime_makers.runtime(rollout=template))) == []


# What is wrong with a runtime; its parts; the beginning of the only sentence.
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "field that is none": ({"defaults": {"trainer": {"node": 1}}}, "spec.defaults.trainer.node is not a field"),
    "number out of range": ({"defaults": {"trainer": {"nodes": 0}}}, "spec.defaults.trainer.nodes is 0"),
    "word that is none": ({"fixed": {"device": "tpu"}}, "spec.fixed.device is 'tpu'"),
    "quantity that is none": (
        {"defaults": {"trainer": {"pod": {"resources": {"limits": {"memory": "4GBs"}}}}}},
        'spec.defaults.trainer.pod.resources.limits is {"memory": "4GBs"}',
    ),
    "item of a list that lacks its name": (
        {"defaults": {"rollout": {"pod": {"env": [{"value": "1"}]}}}},
        "spec.defaults.rollout.pod.env[0].name is missing",
    ),
    "field of pods that templates have": (
        {"defaults": {"trainer": {"pod": {"hostNetwork": True}}}},
        "spec.defaults.trainer.pod.hostNetwork is not a field",
    ),
    "runtime of a runtime": ({"defaults": {"runtimeRef": {"name": "other"}}}, "spec.defaults.runtimeRef is "),
    "suspended jobs": ({"fixed": {"suspend": True}}, "spec.fixed.suspend is true"),
    "manager": ({"defaults": {"managedBy": "x"}}, "spec.defaults.managedBy is 'x'"),
    "fork": ({"defaults": {"resumeFrom": {"job": "x"}}}, "spec.defaults.resumeFrom is "),
    "replicas that autoscalers write": ({"fixed": {"rollout": {"replicas": 2}}}, "spec.fixed.rollout.replicas is 2"),
    "value that is a default and fixed": (
        {"defaults": {"seed": 1}, "fixed": {"seed": 2}},
        "spec.defaults.seed is 1, but spec.fixed has it",
    ),
    "key of a template": ({"trainer": {"kind": "Pod"}}, "spec.template.trainer.kind is 'Pod'"),
    "reserved label": (
        {"trainer": {"metadata": {"labels": {"rljob.dev/role": "verifier"}}}},
        "spec.template.trainer.metadata.labels.rljob.dev/role is 'verifier'",
    ),
    "name of the pod": (
        {"trainer": {"metadata": {"name": "x"}}},
        "spec.template.trainer.metadata.name is 'x'",
    ),
    "program of the role": (
        {"trainer": box(command=["sh"])},
        f"spec.template.trainer.{ROLE_CONTAINER}.command is ",
    ),
    "image of the role": (
        {"rollout": box(image="x")},
        f"spec.template.rollout.{ROLE_CONTAINER}.image is 'x', but set spec.defaults.rollout.pod.image",
    ),
    "resources of the role": (
        {"trainer": box(resources={"limits": {"cpu": "1"}})},
        f"spec.template.trainer.{ROLE_CONTAINER}.resources is ",
    ),
    "probe of the role": (
        {"rollout": box(livenessProbe={})},
        f"spec.template.rollout.{ROLE_CONTAINER}.livenessProbe is ",
    ),
    "variable of the operator": (
        {"trainer": box(env=[{"name": "RLJOB_ATTEMPT", "value": "7"}])},
        f"spec.template.trainer.{ROLE_CONTAINER}.env[0].name is 'RLJOB_ATTEMPT'",
    ),
    "mount over the settings": (
        {"trainer": box(volumeMounts=[{"name": "v", "mountPath": "/etc/rljob/x"}])},
        f"spec.template.trainer.{ROLE_CONTAINER}.volumeMounts[0].mountPath is '/etc/rljob/x'",
    ),
    "mount above the scratch": (
        {"trainer": box(volumeMounts=[{"name": "v", "mountPath": "/tmp/"}])},
        f"spec.template.trainer.{ROLE_CONTAINER}.volumeMounts[0].mountPath is '/tmp/'",
    ),
    "token of the account": (
        {"trainer": {"spec": {"automountServiceAccountToken": True}}},
        "spec.template.trainer.spec.automountServiceAccountToken is true",
    ),
    "processes of the node": (
        {"trainer": {"spec": {"hostPID": True}}},
        "spec.template.trainer.spec.hostPID is true",
    ),
    "network of the node for a coordinator": (
        {"coordinator": {"spec": {"hostNetwork": True}}},
        "spec.template.coordinator.spec.hostNetwork is true",
    ),
    "claims of devices": (
        {"trainer": {"spec": {"resourceClaims": []}}},
        "spec.template.trainer.spec.resourceClaims is [], but set spec.defaults.trainer.pod.resourceClaims",
    ),
    "root": (
        {"trainer": {"spec": {"securityContext": {"runAsUser": 0}}}},
        "spec.template.trainer.spec.securityContext.runAsUser is 0",
    ),
    "any user": (
        {"trainer": {"spec": {"securityContext": {"runAsNonRoot": False}}}},
        "spec.template.trainer.spec.securityContext.runAsNonRoot is false",
    ),
    "no seccomp": (
        {"trainer": box(securityContext={"seccompProfile": {"type": "Unconfined"}})},
        f"spec.template.trainer.{ROLE_CONTAINER}.securityContext.seccompProfile is ",
    ),
    "privileged": (
        {"rollout": box(securityContext={"privileged": True})},
        f"spec.template.rollout.{ROLE_CONTAINER}.securityContext.privileged is true",
    ),
    "capability": (
        {"rollout": box(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}})},
        f"spec.template.rollout.{ROLE_CONTAINER}.securityContext.capabilities.add is 'SYS_ADMIN'",
    ),
    "capability of a coordinator": (
        {"coordinator": box(securityContext={"capabilities": {"add": ["IPC_LOCK"]}})},
        f"spec.template.coordinator.{ROLE_CONTAINER}.securityContext.capabilities.add is 'IPC_LOCK'",
    ),
    "sidecar that keeps the pod": (
        {"trainer": {"spec": {"containers": [{"name": "log", "image": "x"}]}}},
        f"spec.template.trainer.{ROLE_CONTAINER}.name is 'log'",
    ),
    "container of the operator's name": (
        {"trainer": {"spec": {"initContainers": [{"name": "preflight", "image": "x"}]}}},
        "spec.template.trainer.spec.initContainers[0].name is 'preflight'",
    ),
    "sidecar that reads a role's key": (
        {"trainer": {"spec": {"initContainers": [{"name": "a", "volumeMounts": [{"name": "rljob-tls"}]}]}}},
        "spec.template.trainer.spec.initContainers[0].volumeMounts[0].name is 'rljob-tls'",
    ),
    "privileged sidecar": (
        {"trainer": {"spec": {"initContainers": [{"name": "a", "securityContext": {"privileged": True}}]}}},
        "spec.template.trainer.spec.initContainers[0].securityContext.privileged is true",
    ),
    "volume of the operator": (
        {"trainer": {"spec": {"volumes": [{"name": "checkpoints", "emptyDir": {}}]}}},
        "spec.template.trainer.spec.volumes[0].name is 'checkpoints'",
    ),
    "shared memory on a disk": (
        {"trainer": {"spec": {"volumes": [{"name": "rljob-shm", "hostPath": {"path": "/x"}}]}}},
        "spec.template.trainer.spec.volumes[0].hostPath is ",
    ),
    "two containers of one name": (
        {"trainer": {"spec": {"containers": [{"name": "rljob"}, {"name": "rljob"}]}}},
        "spec.template.trainer.spec.containers is ",
    ),
    "directive of a patch": (
        {"trainer": {"spec": {"volumes": [{"name": "v", "$patch": "delete"}]}}},
        "spec.template.trainer.spec.volumes[0].$patch is 'delete'",
    ),
    "null, which clients drop": (
        {"trainer": {"spec": {"securityContext": {"runAsUser": None}}}},
        "spec.template.trainer.spec.securityContext.runAsUser is null, but kubectl apply drops it",
    ),
    "Secret for a verifier": (
        {"verifier": {"spec": {"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}}},
        "spec.template.verifier.spec.volumes is ",
    ),
    "variable for a verifier": (
        {"verifier": box(env=[{"name": "A", "value": "1"}])},
        f"spec.template.verifier.{ROLE_CONTAINER}.env is ",
    ),
    "account for a verifier": (
        {"verifier": {"spec": {"serviceAccountName": "x"}}},
        "spec.template.verifier.spec.serviceAccountName is 'x'",
    ),
    "capabilities for a verifier": (
        {"verifier": {"spec": {"securityContext": {"seLinuxOptions": {}}}}},
        "spec.template.verifier.spec.securityContext.seLinuxOptions is {}",
    ),
    "too much": ({"trainer": {"metadata": {"annotations": {"a": "x" * 70_000}}}}, "spec has 7"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_runtime_is_refused_by_field(name: str) -> None:
    parts, beginning = BAD[name]
    (problem,) = runtimes.problems(runtime_makers.runtime(**parts))
    assert problem.startswith(beginning)


GOOD: dict[str, dict[str, Any]] = {
    "part of a section that a job completes": {"defaults": {"rollout": {"autoscaling": {"minReplicas": 2}}}},
    "scheduler and placement": {
        "trainer": {
            "spec": {
                "schedulerName": "s",
                "nodeSelector": {"a": "b"},
                "topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 1}],
            }
        }
    },
    "user that the cluster chooses": {
        role: {"spec": {"securityContext": {"$patch": "replace"}}}
        for role in ("coordinator", "rollout", "verifier", "trainer")
    },
    "cache of models": {"rollout": {"spec": {"volumes": [{"name": "rljob-cache", "nfs": {}}]}}},
    "sidecar": {"trainer": {"spec": {"initContainers": [{"name": "log", "image": "x", "restartPolicy": "Always"}]}}},
    "network of the node": {"rollout": {"spec": {"hostNetwork": True, "hostIPC": True}}},
    "placement of verifiers": {"verifier": {"spec": {"tolerations": [{"operator": "Exists"}]}}},
}


@pytest.mark.parametrize("name", GOOD)
def test_what_a_platform_needs_is_accepted(name: str) -> None:
    assert runtimes.problems(runtime_makers.runtime(**GOOD[name])) == []


def test_the_example_is_a_runtime_and_a_job_of_twelve_lines_with_every_value_that_a_cluster_asks_for() -> None:
    folder = examples.EXAMPLES / "runtime"
    runtime = runtimes.load_runtime((folder / "runtime.yaml").read_text())
    text = (folder / "job.yaml").read_text()
    assert len(text.splitlines()) == 12
    document, outcome = runtimes.with_runtime(load.load_document(text), runtime)
    assert outcome.problems == ()
    job = load.load_manifest(json.dumps(document))
    assert job.spec.storage.type == "Persistent"
    assert list(runtimes.template_problems(job, runtime)) == []


def test_a_runtime_of_a_file_is_refused_with_all_that_is_wrong() -> None:
    text = json.dumps(runtime_makers.document(defaults={"seed": -1}, trainer={"spec": {"hostPID": True}}))
    with pytest.raises(errors.ManifestError) as caught:
        runtimes.load_runtime(text)
    assert [problem.split(" is ")[0] for problem in caught.value.problems] == [
        "spec.defaults.seed",
        "spec.template.trainer.spec.hostPID",
    ]
