"""A runtime's template over a pod: what becomes possible by it, and what stays as the operator made it."""

import dataclasses
import random
from collections.abc import Mapping
from typing import Any, Protocol, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api import enums
from rljob_api.validation import runtimes
from rljob_operator.resources import children, overlay
from rljob_operator.resources.inputs import Inputs
from rljob_testing import runtime_makers

SELECTOR = {"rljob.dev/uid": "u"}
T, V = enums.Role.TRAINER, enums.Role.VERIFIER


class Example(Protocol):
    """Makes inputs."""

    def make(self, **sections: object) -> Inputs:
        """Return the inputs of the example with sections changed."""


def template_of(example: Example, role: enums.Role, patch: Mapping[str, object]) -> Any:
    """Return the pod template that a role gets with a runtime's."""
    runtime = runtime_makers.runtime(**{str(role): patch})
    assert runtimes.problems(runtime) == []
    inputs = dataclasses.replace(example.make(), runtime=runtime)
    for workload in children.workloads(inputs, attempt=1, rollouts=1):
        template: Any = workload["spec"].get("template") if isinstance(workload["spec"], dict) else None
        if template and template["metadata"]["labels"]["rljob.dev/role"] == role:
            return template
    raise AssertionError(f"no workload of {role}")


def pod_of(example: Example, role: enums.Role, **spec: object) -> Any:
    return template_of(example, role, {"spec": spec})["spec"]


def box_of(example: Example, role: enums.Role, **fields: object) -> Any:
    return pod_of(example, role, containers=[{"name": "rljob", **fields}])["containers"][0]


def test_a_scheduler_of_the_platform_places_the_pods(example: Example) -> None:
    assert pod_of(example, T, schedulerName="volcano")["schedulerName"] == "volcano"


def test_pods_on_the_network_of_their_node_still_find_services(example: Example) -> None:
    pod = pod_of(example, T, hostNetwork=True)
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert pod_of(example, T, hostNetwork=True, dnsPolicy="None")["dnsPolicy"] == "None"


def test_memory_may_be_pinned_for_rdma_and_no_other_setting_of_the_container_changes(example: Example) -> None:
    before = box_of(example, T)["securityContext"]
    context = box_of(example, T, securityContext={"capabilities": {"add": ["IPC_LOCK"]}})["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert {**context, "capabilities": None} == {**before, "capabilities": None}


def test_variables_of_nccl_are_added_and_ours_stay(example: Example) -> None:
    before = {item["name"] for item in box_of(example, T)["env"]}
    env = {
        item["name"]: item.get("value")
        for item in box_of(example, T, env=[{"name": "NCCL_DEBUG", "value": "INFO"}])["env"]
    }
    assert env["NCCL_DEBUG"] == "INFO"
    assert env.keys() == before | {"NCCL_DEBUG"}


def test_the_size_of_shared_memory_is_the_platforms(example: Example) -> None:
    pod = pod_of(example, T, volumes=[{"name": "rljob-shm", "emptyDir": {"sizeLimit": "64Gi"}}])
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "rljob-shm"]
    assert volume == {"name": "rljob-shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}}


def test_one_cache_of_models_serves_all_pods_of_a_node(example: Example) -> None:
    path = {"path": "/mnt/models"}
    pod = pod_of(example, T, volumes=[{"name": "rljob-cache", "hostPath": path}])
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "rljob-cache"]
    assert volume == {"name": "rljob-cache", "hostPath": path}


@pytest.mark.parametrize("source", [{"csi": {"driver": "s3"}}, {"ephemeral": {"volumeClaimTemplate": {}}}, {"nfs": {}}])
def test_any_source_of_a_volume_may_be_mounted(example: Example, source: dict[str, object]) -> None:
    mount = {"name": "data", "mountPath": "/mnt/data"}
    pod = pod_of(
        example, T, volumes=[{"name": "data", **source}], containers=[{"name": "rljob", "volumeMounts": [mount]}]
    )
    assert {"name": "data", **source} in pod["volumes"]
    assert mount in pod["containers"][0]["volumeMounts"]


def test_a_sidecar_starts_before_the_role_and_leaves_its_container_alone(example: Example) -> None:
    sidecar = {"name": "log", "image": "example/log:1", "restartPolicy": "Always"}
    pod = pod_of(example, T, initContainers=[sidecar])
    assert pod["initContainers"] == [sidecar]
    assert [box["name"] for box in pod["containers"]] == ["rljob"]


@pytest.mark.parametrize("role", list(enums.STANDARD_ROLES))
def test_a_cluster_that_gives_each_namespace_its_users_chooses_them(example: Example, role: enums.Role) -> None:
    """OpenShift's restricted-v2 refuses a user, group or fsGroup that a pod names."""
    context = pod_of(example, role, securityContext={"$patch": "replace"})["securityContext"]
    assert context == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_devices_are_claimed_by_the_defaults_of_a_runtime(example: Example) -> None:
    claim = {"name": "gpu", "resourceClaimTemplateName": "h100"}
    runtime = runtime_makers.runtime(defaults={"trainer": {"pod": {"resourceClaims": [claim]}}})
    assert runtimes.problems(runtime) == []
    merged = runtimes.merged({}, runtime).spec
    inputs = example.make(trainer={"maxTokensPerMicroBatch": 4096, **merged["trainer"]})  # type: ignore[dict-item]
    (job,) = [each for each in children.workloads(inputs, attempt=1, rollouts=1) if each["kind"] == "Job"]
    pod = job["spec"]["template"]["spec"]  # type: ignore[index]
    assert pod["resourceClaims"] == [claim]
    assert pod["containers"][0]["resources"]["claims"] == [{"name": "gpu"}]


def test_a_spread_counts_the_roles_own_pods_unless_it_says_what(example: Example) -> None:
    spread = [{"topologyKey": "zone", "maxSkew": 1}, {"topologyKey": "rack", "labelSelector": {}}]
    first, second = pod_of(example, V, topologySpreadConstraints=spread)["topologySpreadConstraints"]
    assert first["labelSelector"]["matchLabels"] == {"rljob.dev/uid": "u-1", "rljob.dev/role": "verifier"}
    assert second["labelSelector"] == {}


def test_a_spread_over_as_many_zones_as_a_platform_asks_for_is_the_pods_as_it_is_written(example: Example) -> None:
    spread = {
        "topologyKey": "topology.kubernetes.io/zone",
        "maxSkew": 1,
        "minDomains": 3,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"team": "blue"}},
        "matchLabelKeys": ["rljob.dev/attempt"],
        "nodeTaintsPolicy": "Honor",
    }
    hint = {**spread, "maxSkew": 2, "whenUnsatisfiable": "ScheduleAnyway"}
    pod = pod_of(example, T, topologySpreadConstraints=[spread, hint])
    assert pod["topologySpreadConstraints"] == [spread, hint]


def test_labels_of_the_platform_are_added_and_ours_stay(example: Example) -> None:
    labels = template_of(example, T, {"metadata": {"labels": {"team": "blue"}}})["metadata"]["labels"]
    assert (labels["team"], labels["rljob.dev/role"], labels["rljob.dev/attempt"]) == ("blue", "trainer", "1")


def test_pods_are_rolled_when_their_roles_template_changes_and_others_are_not(example: Example) -> None:
    patch = {"spec": {"schedulerName": "s"}}
    hash_of = "rljob.dev/template-hash"
    plain, changed = (
        {role: template_of(example, role, {})["metadata"]["annotations"][hash_of] for role in enums.STANDARD_ROLES}
        for _ in "ab"
    )
    changed[T] = template_of(example, T, patch)["metadata"]["annotations"][hash_of]
    assert {role for role in enums.STANDARD_ROLES if plain[role] != changed[role]} == {T}


KEYS = st.sampled_from(["a", "b", "c"])
NAMED = st.lists(
    st.fixed_dictionaries({"name": KEYS}, optional={"value": st.integers(0, 2)}),
    max_size=3,
    unique_by=lambda item: item["name"],
)
PATCHES = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries({"labels": st.dictionaries(KEYS, st.integers(0, 2))}),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "volumes": NAMED,
                "tolerations": st.lists(st.fixed_dictionaries({"key": KEYS}), max_size=3),
                "nodeSelector": st.dictionaries(KEYS, st.integers(0, 2)),
                "containers": st.lists(
                    st.fixed_dictionaries({"name": st.just("rljob")}, optional={"env": NAMED}), max_size=1
                ),
            },
        ),
    },
)
PODS = PATCHES.map(lambda pod: {**pod, "spec": {**pod.get("spec", {}), "nodeSelector": {"a": 7}}})


@given(made=PODS, patch=PATCHES)
@settings(max_examples=100, deadline=None)
def test_laying_a_template_over_a_pod_twice_is_laying_it_once(made: dict[str, Any], patch: dict[str, Any]) -> None:
    once = overlay.laid_over(made, patch, selector=SELECTOR)
    assert overlay.laid_over(once, patch, selector=SELECTOR) == once


@given(made=PODS, patch=PATCHES, seed=st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_the_order_of_named_things_in_a_template_decides_nothing(
    made: dict[str, Any], patch: dict[str, Any], seed: int
) -> None:
    spec = dict(patch.get("spec", {}))
    if spec.get("volumes"):
        spec["volumes"] = random.Random(seed).sample(spec["volumes"], len(spec["volumes"]))
    results = [overlay.laid_over(made, each, selector=SELECTOR) for each in (patch, {**patch, "spec": spec})]
    by_name = [{item["name"]: item for item in cast(Any, one["spec"]).get("volumes") or ()} for one in results]
    assert by_name[0] == by_name[1]


@given(made=PODS, patch=PATCHES)
@settings(max_examples=100, deadline=None)
def test_what_a_template_does_not_name_stays(made: dict[str, Any], patch: dict[str, Any]) -> None:
    result = overlay.laid_over(made, patch, selector=SELECTOR)
    spec: Any = result["spec"]
    patched = {item["name"] for item in patch.get("spec", {}).get("volumes", ())}
    kept = [item for item in made["spec"].get("volumes", ()) if item["name"] not in patched]
    assert [item for item in spec.get("volumes", ()) if item in kept] == kept
    for key, value in made.get("metadata", {}).get("labels", {}).items():
        assert result["metadata"]["labels"][key] == patch.get("metadata", {}).get("labels", {}).get(key, value)  # type: ignore[index]
