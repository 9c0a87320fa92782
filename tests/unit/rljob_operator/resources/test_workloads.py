import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import pytest

from rljob_api import cluster_placement, enums, resolve
from rljob_operator.resources import children, config, network, services, workloads
from rljob_operator.resources.inputs import Inputs
from rljob_operator.settings import JobSettings
from rljob_testing import runtime_makers

C, R, V, T = enums.Role.COORDINATOR, enums.Role.ROLLOUT, enums.Role.VERIFIER, enums.Role.TRAINER


class Example(Protocol):
    def make(self, **sections: object) -> Inputs: ...


def _workloads(given: Inputs) -> dict[enums.Role, Any]:
    return {
        C: workloads.coordinator_stateful_set(given, replicas=1),
        R: workloads.rollout_deployment(given, replicas=1),
        V: workloads.verifier_deployment(given, replicas=1),
        T: workloads.trainer_job(given, attempt=3),
    }


def _template(given: Inputs, role: enums.Role) -> Any:
    return _workloads(given)[role]["spec"]["template"]


def _container(given: Inputs, role: enums.Role) -> Any:
    (found,) = _template(given, role)["spec"]["containers"]
    return found


def _env(given: Inputs, role: enums.Role) -> dict[str, object]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in _container(given, role)["env"]}


@pytest.mark.covers("workflows 2.1")
@pytest.mark.parametrize(("reward", "told"), [("exact", {R}), ("mine:reward", {R, V})])
def test_a_file_of_the_users_is_mounted_where_it_runs_and_nowhere_else(
    example: Example, reward: str, told: set[enums.Role]
) -> None:
    given = example.make(
        workflow={"type": "mine:Game", "code": {"path": "code/mine.py", "configMap": "my-code"}},
        verifier={"rewards": [{"name": "sum", "type": reward}]},
    )
    assert given.configs.rollouts[0].user_code == "/etc/rljob-code/mine.py"
    volume = {"name": "rljob-code", "configMap": {"name": "my-code"}}
    mount = {"name": "rljob-code", "mountPath": "/etc/rljob-code", "readOnly": True}
    assert {role for role in enums.STANDARD_ROLES if volume in _template(given, role)["spec"]["volumes"]} == told
    assert {role for role in enums.STANDARD_ROLES if mount in _container(given, role)["volumeMounts"]} == told


def test_a_model_on_a_claim_is_mounted_read_only_where_it_is_loaded_and_nowhere_else(example: Example) -> None:
    given = example.make(model={"name": "qwen", "source": {"claimName": "models", "path": "qwen/7b"}})
    assert given.configs.trainer.model.path == given.configs.rollouts[0].model.path == "/var/lib/rljob-model/qwen/7b"
    volume = {"name": "rljob-model", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}}
    mount = {"name": "rljob-model", "mountPath": "/var/lib/rljob-model", "readOnly": True}
    assert {role for role in enums.STANDARD_ROLES if volume in _template(given, role)["spec"]["volumes"]} == {R, T}
    assert {role for role in enums.STANDARD_ROLES if mount in _container(given, role)["volumeMounts"]} == {R, T}


def test_a_hub_s_credentials_go_to_who_loads_the_model_and_the_manifest_s_own_come_after_them(
    example: Example,
) -> None:
    own = {"pod": {"envFrom": [{"configMapRef": {"name": "mine"}}]}}
    given = example.make(model={"name": "org/m", "source": {"secretName": "hub"}}, trainer=own)
    secret = {"secretRef": {"name": "hub"}}
    assert {role for role in enums.STANDARD_ROLES if secret in _container(given, role).get("envFrom", [])} == {R, T}
    assert [next(iter(source)) for source in _container(given, T)["envFrom"]] == ["secretRef", "configMapRef"]


@pytest.mark.parametrize("name", ["foundation", "workloads"])
def test_children_of_the_example_are_those_that_were_reviewed(
    example: Example, name: str, reviewed: Callable[[str, list[Any]], None]
) -> None:
    given = example.make()
    reviewed(
        f"{name}.yaml",
        children.foundation(given) if name == "foundation" else children.workloads(given, attempt=1, rollouts=1),
    )


@pytest.mark.covers("security")
@pytest.mark.parametrize("role", enums.STANDARD_ROLES)
def test_every_pod_is_restricted(example: Example, role: enums.Role) -> None:
    pod, box = _template(example.make(), role)["spec"], _container(example.make(), role)
    assert not pod["automountServiceAccountToken"]
    assert not pod["enableServiceLinks"]
    assert not pod["shareProcessNamespace"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert box["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert all("sizeLimit" in volume["emptyDir"] for volume in pod["volumes"] if "emptyDir" in volume)


def test_a_pod_sees_its_own_roles_config_and_no_others(example: Example) -> None:
    for role in enums.STANDARD_ROLES:
        (config,) = (
            volume["configMap"]
            for volume in _template(example.make(), role)["spec"]["volumes"]
            if "configMap" in volume
        )
        assert config == {"name": "sums-config", "items": [{"key": f"{role}.json", "path": f"{role}.json"}]}


def test_starting_may_take_as_long_as_any_start_up_deadline_and_changing_one_changes_no_pod(example: Example) -> None:
    probe = _container(example.make(), R)["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 7 * 24 * 3600
    assert probe["httpGet"] == {"path": "/healthz", "port": "health"}
    longer = example.make(startupDeadlineSeconds=7200, schedulingDeadlineSeconds=60)
    for role in enums.STANDARD_ROLES:
        assert _template(longer, role) == _template(example.make(), role)


@pytest.mark.parametrize("role", [C, R, T])
def test_role_without_a_word_asks_for_a_little_so_that_a_quota_takes_it(example: Example, role: enums.Role) -> None:
    found = _container(example.make(), role)["resources"]
    assert found == {"requests": {"cpu": "100m" if role is C else "250m", "memory": "256Mi" if role is C else "1Gi"}}


@pytest.mark.parametrize("role", [C, R, T])
@pytest.mark.parametrize(
    ("given", "requests"),
    [
        ({"requests": {"cpu": "0"}}, {"cpu": "0", "memory": ...}),
        ({"requests": {"cpu": "8", "memory": "64Gi"}}, {"cpu": "8", "memory": "64Gi"}),
        ({"limits": {"memory": "100Mi"}}, {"cpu": ...}),
        ({"limits": {"rdma/hca": "1"}}, {"cpu": ..., "memory": ...}),
    ],
    ids=["nothing", "more", "a limit below the default", "a network adapter"],
)
def test_manifest_says_what_a_role_asks_for_and_a_limit_is_never_below_a_default(
    example: Example, role: enums.Role, given: dict[str, Any], requests: dict[str, Any]
) -> None:
    section: dict[str, Any] = {"pod": {"resources": given}}
    if role is R:
        section |= {"engine": {"maxModelLen": 256}, "sampling": {"maxTokens": 8}}
    if role is T:
        section |= {"maxTokensPerMicroBatch": 4096}
    found = _container(example.make(**{str(role): section}), role)["resources"]
    default = _container(example.make(), role)["resources"]["requests"]
    assert found["requests"] == {key: default[key] if value is ... else value for key, value in requests.items()}
    assert found.get("limits", {}) == given.get("limits", {})


ENGINE = {"maxModelLen": 256, "tensorParallelSize": 4}
MORE = {"sampling": {"maxTokens": 8}}
CLAIM = {"name": "gpu", "resourceClaimTemplateName": "h100"}


def _shared_memory(given: Inputs, role: enums.Role) -> str:
    volumes = {volume["name"]: volume for volume in _template(given, role)["spec"]["volumes"]}
    return str(volumes["rljob-shm"]["emptyDir"]["sizeLimit"])


def test_pods_of_a_job_for_gpus_ask_for_those_that_their_processes_use(example: Example) -> None:
    trainer = {"processesPerNode": 2, "maxTokensPerMicroBatch": 4096}
    given = example.make(device="cuda", rollout={"engine": ENGINE, **MORE}, trainer=trainer)
    assert _container(given, R)["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    assert _container(given, T)["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    for role in (C, enums.Role.VERIFIER):
        assert "nvidia.com/gpu" not in _container(given, role)["resources"].get("limits", {})
    assert (_shared_memory(given, R), _shared_memory(given, T)) == ("4Gi", "2Gi")


def test_pods_of_a_job_for_processors_ask_for_no_gpu(example: Example) -> None:
    given = example.make(rollout={"engine": ENGINE, **MORE})
    assert all("limits" not in _container(given, role)["resources"] for role in (R, T))
    assert _shared_memory(given, R) == "1Gi"


def test_written_gpus_stay(example: Example) -> None:
    pod = {"resources": {"limits": {"nvidia.com/gpu": "8", "rdma/hca": "1"}}}
    given = example.make(rollout={"engine": ENGINE, **MORE, "pod": pod})
    assert _container(given, R)["resources"]["limits"] == {"nvidia.com/gpu": "8", "rdma/hca": "1"}
    # One role that asks for GPUs makes it a job for GPUs: the trainer's follow.
    assert _container(given, T)["resources"]["limits"] == {"nvidia.com/gpu": "1"}


def test_a_claim_takes_the_place_of_gpus_and_the_container_uses_it(example: Example) -> None:
    given = example.make(trainer={"pod": {"resourceClaims": [CLAIM]}, "maxTokensPerMicroBatch": 4096})
    assert _template(given, T)["spec"]["resourceClaims"] == [CLAIM]
    resources = _container(given, T)["resources"]
    assert resources["claims"] == [{"name": "gpu"}]
    assert "limits" not in resources
    assert "resourceClaims" not in _template(given, R)["spec"]


def test_variables_of_nccl_are_the_users(example: Example) -> None:
    pod = {"env": [{"name": "NCCL_IB_HCA", "value": "mlx5"}]}
    given = example.make(trainer={"pod": pod, "maxTokensPerMicroBatch": 4096})
    assert _env(given, T)["NCCL_IB_HCA"] == "mlx5"


def test_the_kubelet_waits_fifteen_seconds_longer_than_a_drain(example: Example) -> None:
    given = example.make(rollout={"drainSeconds": 77, "engine": {"maxModelLen": 256}, "sampling": {"maxTokens": 8}})
    assert _template(given, R)["spec"]["terminationGracePeriodSeconds"] == 92
    assert _container(given, R)["lifecycle"]["preStop"]["exec"]["command"][-2:] == ["--seconds", "77"]


def test_only_labels_tell_the_template_of_one_attempt_from_that_of_the_next(example: Example) -> None:
    first, fifth = (workloads.trainer_job(example.make(), attempt=number)["spec"]["template"] for number in (1, 5))
    assert fifth["metadata"]["labels"].pop("rljob.dev/attempt") == "5"
    assert first["metadata"]["labels"].pop("rljob.dev/attempt") == "1"
    assert first == fifth


def test_one_lost_rank_fails_the_attempt(example: Example) -> None:
    spec = _workloads(example.make(trainer={"nodes": 2, "maxTokensPerMicroBatch": 4096}))[T]["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    assert (spec["backoffLimit"], spec["podReplacementPolicy"]) == (0, "Failed")
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert "podFailurePolicy" not in spec
    assert "ttlSecondsAfterFinished" not in spec


def test_a_trainer_pod_learns_attempt_rank_and_rendezvous_from_its_variables(example: Example) -> None:
    given = example.make()
    env = _env(given, T)
    assert env["RLJOB_ATTEMPT"] == {"fieldRef": {"fieldPath": "metadata.labels['rljob.dev/attempt']"}}
    assert env["RLJOB_RENDEZVOUS_HOST"] == "sums-trainer-$(RLJOB_ATTEMPT)-0.sums-trainer.team.svc"
    assert env["RLJOB_NODE_RANK"] == {
        "fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}
    }
    assert _template(given, T)["spec"]["subdomain"] == "sums-trainer"
    assert _template(given, T)["metadata"]["labels"]["rljob.dev/attempt"] == "3"


def test_a_rollout_pod_learns_the_address_under_which_it_serves_weights(example: Example) -> None:
    given = example.make()
    assert _env(given, R)["RLJOB_POD_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert {port["name"]: port["containerPort"] for port in _container(given, R)["ports"]} == {
        "health": 8080,
        "weights": 50054,
    }


def test_a_trainer_that_broadcasts_weights_learns_its_address_and_listens_for_rollouts(example: Example) -> None:
    given = example.make(weightSync={"transport": "gloo"})
    assert _env(given, T)["RLJOB_POD_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert {port["name"]: port["containerPort"] for port in _container(given, T)["ports"]} == {
        "health": 8080,
        "rendezvous": 29500,
        "broadcasts": 50055,
    }
    assert "RLJOB_POD_IP" not in _env(example.make(), T)


def test_rollouts_that_read_files_listen_on_no_port_for_weights(example: Example) -> None:
    given = example.make(weightSync={"transport": "file"})
    assert [port["name"] for port in _container(given, R)["ports"]] == ["health"]


def test_a_rendezvous_does_not_wait_for_readiness_and_rollouts_are_found_when_they_serve(example: Example) -> None:
    given = example.make()
    found = {role: services.service(given, role)["spec"] for role in enums.STANDARD_ROLES}
    assert {role: spec["publishNotReadyAddresses"] for role, spec in found.items() if isinstance(spec, dict)} == {
        C: True,
        R: False,
        V: False,
        T: True,
    }


def test_a_verifiers_requests_equal_its_limits(example: Example) -> None:
    verifier = {
        "rewards": [{"name": "sum", "type": "exact"}],
        "memory": "256Mi",
        "maxConcurrent": 3,
        "pod": {"resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "2"}}},
    }
    resources = _container(example.make(verifier=verifier), V)["resources"]
    # 512 MiB for the service and three times 256 MiB.
    assert resources["limits"] == {"cpu": "2", "memory": str(1280 << 20), "ephemeral-storage": "2Gi"}
    assert resources["requests"] == resources["limits"]


def test_names_of_the_operator_win_over_those_of_the_manifest(example: Example) -> None:
    pod = {
        "env": [{"name": "RLJOB_POD", "value": "spoof"}, {"name": "HOME", "value": "/data"}],
        "commandPrefix": ["nsys", "profile"],
    }
    given = example.make(coordinator={"pod": pod})
    assert _env(given, C)["RLJOB_POD"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert _env(given, C)["HOME"] == "/data"
    assert _container(given, C)["command"] == ["nsys", "profile", "rljob-coordinator"]
    names_of_env = [item["name"] for item in _container(given, C)["env"]]
    assert len(names_of_env) == len(set(names_of_env))


def _claims(given: Inputs, role: enums.Role) -> dict[str, str]:
    """Return the claims that pods of a role mount, by mount path."""
    pod = _template(given, role)["spec"]
    claims = {each["name"]: each["persistentVolumeClaim"]["claimName"] for each in pod["volumes"] if _is_claim(each)}
    (box,) = pod["containers"]
    return {each["mountPath"]: claims[each["name"]] for each in box["volumeMounts"] if each["name"] in claims}


def _is_claim(volume: Mapping[str, object]) -> bool:
    return "persistentVolumeClaim" in volume


STATE, FILES = "/var/lib/rljob-state", "/var/lib/rljob"
NEW, NAMED = {"size": "10Gi"}, {"claimName": "mine"}
IN_STORE = {"uri": "s3://runs/mine"}
MANY = {"accessMode": "ReadWriteMany"}
STATE_CLAIM = "sums-state-u-1"
BY_FILES = {"transport": "file"}


@pytest.mark.parametrize(
    ("storage", "weight_sync", "coordinator", "trainer", "rollout"),
    [
        ({"type": "Ephemeral"}, {}, {}, {}, {}),
        ({"type": "Persistent", "checkpoints": NAMED}, {}, {STATE: STATE_CLAIM}, {FILES: "mine"}, {}),
        ({"type": "Persistent", "checkpoints": IN_STORE}, {}, {STATE: STATE_CLAIM}, {}, {}),
        ({"type": "Persistent", "checkpoints": NEW}, {}, {STATE: STATE_CLAIM}, {FILES: "sums-checkpoints-u-1"}, {}),
        (
            {"type": "Persistent", "state": {"claimName": "ledger"}, "checkpoints": {**NAMED, **MANY}},
            {},
            {STATE: "ledger"},
            {FILES: "mine"},
            {FILES: "mine"},
        ),
        (
            {"type": "Persistent", "checkpoints": NEW},
            BY_FILES,
            {STATE: STATE_CLAIM, FILES: "sums-checkpoints-u-1"},
            {FILES: "sums-checkpoints-u-1"},
            {FILES: "sums-checkpoints-u-1"},
        ),
    ],
)
def test_each_pod_mounts_what_it_writes_and_the_coordinator_alone_its_ledger(
    example: Example,
    storage: Mapping[str, object],
    weight_sync: Mapping[str, object],
    coordinator: Mapping[str, str],
    trainer: Mapping[str, str],
    rollout: Mapping[str, str],
) -> None:
    given = example.make(storage=storage, weightSync=weight_sync)
    assert {role: _claims(given, role) for role in enums.STANDARD_ROLES} == {
        C: coordinator,
        T: trainer,
        R: rollout,
        V: {},
    }
    for role in (C, T, R):
        mounts = {each["mountPath"] for each in _template(given, role)["spec"]["containers"][0]["volumeMounts"]}
        assert mounts & {STATE, FILES} >= {STATE if role is C else FILES}


def test_checkpoints_that_are_not_uploaded_yet_have_the_room_that_the_pod_asks_for(example: Example) -> None:
    volumes = _template(example.make(storage={"type": "Persistent", "checkpoints": IN_STORE}), T)["spec"]["volumes"]
    assert {"name": "checkpoints", "emptyDir": {}} in volumes


def test_nothing_ties_a_trainer_to_its_coordinators_node(example: Example) -> None:
    storage = {"type": "Persistent", "checkpoints": NEW}
    assert "affinity" not in _template(example.make(storage=storage), T)["spec"]


@pytest.mark.parametrize(
    ("state", "mode", "size", "owned"),
    [
        (None, "ReadWriteOnce", "64Gi", False),
        ({"size": "5Gi", "accessMode": "ReadWriteOncePod", "retention": "Delete"}, "ReadWriteOncePod", "5Gi", True),
    ],
)
def test_the_ledger_has_a_claim_of_its_own_that_goes_with_no_stateful_set(
    example: Example, state: Mapping[str, object] | None, mode: str, size: str, owned: bool
) -> None:
    given = example.make(
        storage={"type": "Persistent", "checkpoints": NAMED, **({"state": state} if state is not None else {})}
    )
    (claim,) = (each for each in children.foundation(given) if each["kind"] == "PersistentVolumeClaim")
    metadata: Any = claim["metadata"]
    assert metadata["name"] == STATE_CLAIM
    assert claim["spec"] == {"accessModes": [mode], "resources": {"requests": {"storage": size}}}
    assert [each["kind"] for each in metadata.get("ownerReferences", [])] == (["RLJob"] if owned else [])
    assert "volumeClaimTemplates" not in _workloads(given)[C]["spec"]


@pytest.mark.parametrize(("retention", "owned"), [("Retain", False), ("Delete", True), (None, False)])
def test_a_claim_of_checkpoints_goes_with_its_job_only_if_the_manifest_says_so(
    example: Example, retention: str | None, owned: bool
) -> None:
    new = {**NEW, "storageClassName": "nfs", **MANY, **({"retention": retention} if retention else {})}
    given = example.make(storage={"type": "Persistent", "state": NAMED, "checkpoints": new})
    (claim,) = (each for each in children.foundation(given) if each["kind"] == "PersistentVolumeClaim")
    assert claim["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "10Gi"}},
        "storageClassName": "nfs",
    }
    metadata: Any = claim["metadata"]
    assert metadata["labels"]["rljob.dev/uid"] == "u-1"
    assert ("ownerReferences" in metadata) is owned


@pytest.mark.parametrize(
    "storage", [{"type": "Ephemeral"}, {"type": "Persistent", "state": NAMED, "checkpoints": NAMED}]
)
def test_no_claim_is_made_where_the_user_has_one_or_needs_none(example: Example, storage: Mapping[str, object]) -> None:
    assert all(each["kind"] != "PersistentVolumeClaim" for each in children.foundation(example.make(storage=storage)))


@pytest.mark.parametrize(
    "change",
    [
        {"maxSteps": 99},
        {"suspend": True},
        {"async": {"maxOffPolicySteps": 3}},
        {"observability": {"logLevel": "Debug"}},
        {"failurePolicy": {"maxTrainerRestarts": 1}},
        {"verifier": {"rewards": [{"name": "sum", "type": "exact", "config": {"firstLine": True}}], "replicas": 3}},
    ],
)
def test_what_a_running_job_takes_over_live_rolls_no_pod(example: Example, change: dict[str, object]) -> None:
    before, after = example.make(), example.make(**change)
    for role in enums.STANDARD_ROLES:
        assert config.template_hash(before, role) == config.template_hash(after, role)


def test_a_pod_setting_rolls_its_own_role_alone(example: Example) -> None:
    before = example.make()
    after = example.make(coordinator={"pod": {"env": [{"name": "A", "value": "1"}]}})
    assert [role for role in enums.STANDARD_ROLES if _hashes(before)[role] != _hashes(after)[role]] == [C]


def test_another_image_rolls_its_role(example: Example) -> None:
    before = example.make()
    after = dataclasses.replace(before, images={**before.images, R: "example/rljob:2"})
    assert [role for role in enums.STANDARD_ROLES if _hashes(before)[role] != _hashes(after)[role]] == [R]


def _hashes(given: Inputs) -> dict[enums.Role, str]:
    return {role: config.template_hash(given, role) for role in enums.STANDARD_ROLES}


@pytest.mark.parametrize(("checkpoints", "read_only"), [("models", False), ("others", True)])
def test_a_model_on_the_claim_of_the_checkpoints_leaves_that_claim_writable(
    example: Example, checkpoints: str, read_only: bool
) -> None:
    given = example.make(
        model={"name": "mine", "source": {"claimName": "models"}},
        storage={"type": "Persistent", "checkpoints": {"claimName": checkpoints}},
    )
    volumes = {each["name"]: each for each in _template(given, T)["spec"]["volumes"]}
    mounts = {each["name"]: each for each in _container(given, T)["volumeMounts"]}
    assert volumes["rljob-model"]["persistentVolumeClaim"].get("readOnly", False) is read_only
    assert "readOnly" not in volumes["checkpoints"]["persistentVolumeClaim"]
    assert mounts["rljob-model"]["readOnly"] is True


def _budgets(given: Inputs, allows: str | None, *, running: bool) -> dict[str, Any]:
    annotations = {} if allows is None else {"rljob.dev/allow-disruption": allows}
    metadata = given.job.metadata.model_copy(update={"annotations": annotations})
    annotated = dataclasses.replace(given, job=given.job.model_copy(update={"metadata": metadata}))
    budgets: list[Any] = workloads.disruption_budgets(annotated, running=running)
    return {
        budget["metadata"]["name"]: {key: value for key, value in budget["spec"].items() if key != "selector"}
        for budget in budgets
    }


_UNREADY_PODS_MAY_GO = {"unhealthyPodEvictionPolicy": "AlwaysAllow"}
_OF_ROLLOUTS = {"sums-rollout": {"maxUnavailable": "25%", **_UNREADY_PODS_MAY_GO}}


def _two_trainer_nodes(example: Example) -> Inputs:
    trainer = {"nodes": 2, "maxTokensPerMicroBatch": 4096}
    rollout = {"replicas": 4, "engine": {"maxModelLen": 256}, "sampling": {"maxTokens": 8}}
    return example.make(trainer=trainer, rollout=rollout)


def test_a_drain_may_evict_every_pod_but_a_quarter_of_the_rollouts_at_a_time(example: Example) -> None:
    given = _two_trainer_nodes(example)
    assert _budgets(given, None, running=True) == _OF_ROLLOUTS
    assert _budgets(given, "true", running=True) == {}


def test_no_role_of_one_pod_has_a_budget(example: Example) -> None:
    assert _budgets(example.make(), None, running=True) == {}


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_job_may_keep_drains_from_its_trainer_while_it_runs(example: Example, nodes: int) -> None:
    given = example.make(trainer={"nodes": nodes, "maxTokensPerMicroBatch": 4096})
    of_trainer = {"sums-trainer": {"minAvailable": nodes, **_UNREADY_PODS_MAY_GO}}
    assert _budgets(given, "false", running=True) == of_trainer
    assert _budgets(given, "false", running=False) == {}
    assert _budgets(_two_trainer_nodes(example), "false", running=False) == _OF_ROLLOUTS


@pytest.mark.covers("security")
def test_hubs_are_reached_on_443_but_no_address_of_the_cluster_and_the_verifier_reaches_nothing(
    example: Example,
) -> None:
    given = example.make()
    policies: dict[enums.Role, Any] = {role: network.network_policy(given, role) for role in enums.STANDARD_ROLES}
    assert policies[V]["spec"]["egress"] == []
    for role in (C, R, T):
        rules = [
            rule for rule in policies[role]["spec"]["egress"] if rule.get("ports") == [{"protocol": "TCP", "port": 443}]
        ]
        private = ["10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"]
        assert [rule["to"][0]["ipBlock"] for rule in rules] == [
            {"cidr": "0.0.0.0/0", "except": private},
            {"cidr": "::/0", "except": ["fc00::/7", "fe80::/10"]},
        ]


def test_the_operator_reaches_the_coordinators_status_from_its_own_namespace(example: Example) -> None:
    given = dataclasses.replace(example.make(), settings=JobSettings(operator_namespace="rljob-system"))
    policy: Any = network.network_policy(given, C)
    rule = policy["spec"]["ingress"][-1]
    assert rule["from"][0]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "rljob-system"}
    assert rule["ports"] == [{"protocol": "TCP", "port": 50051}]


def test_the_chart_s_own_test_looks_at_a_coordinator_s_metrics(example: Example) -> None:
    given = dataclasses.replace(example.make(), settings=JobSettings(operator_namespace="rljob-system"))
    policy: Any = network.network_policy(given, C)
    rule = policy["spec"]["ingress"][-2]
    assert rule["ports"] == [{"protocol": "TCP", "port": 8080}]
    assert [peer["podSelector"]["matchLabels"] for peer in rule["from"]] == 2 * [
        {"app.kubernetes.io/name": "rljob-operator"}
    ]
    assert ["namespaceSelector" in peer for peer in rule["from"]] == [True, False], "there, or beside the job"


def test_an_account_that_the_runtime_names_is_not_made(example: Example) -> None:
    runtime = runtime_makers.runtime(coordinator={"spec": {"serviceAccountName": "mine"}})
    given = dataclasses.replace(example.make(), runtime=runtime)
    accounts = [child for child in children.foundation(given) if child["kind"] == "ServiceAccount"]
    assert len(accounts) == 3
    assert _template(given, C)["spec"]["serviceAccountName"] == "mine"


def test_what_guards_pods_comes_before_what_makes_them(example: Example) -> None:
    kinds = [child["kind"] for child in children.foundation(example.make())]
    assert kinds == ["NetworkPolicy"] * 4 + ["ServiceAccount"] * 4 + ["ConfigMap"] + ["Service"] * 4


def test_a_verifier_is_gone_after_ten_seconds(example: Example) -> None:
    given = example.make()
    assert _template(given, V)["spec"]["terminationGracePeriodSeconds"] == 10
    assert _container(given, V)["lifecycle"]["preStop"]["exec"]["command"][-2:] == ["--seconds", "8"]


def test_images_are_pulled_with_the_installations_secrets_and_the_runtimes(example: Example) -> None:
    secrets = {"spec": {"imagePullSecrets": [{"name": "mine"}, {"name": "mirror"}]}}
    settings = JobSettings(image_pull_secrets=("mirror",))
    given = dataclasses.replace(example.make(), settings=settings, runtime=runtime_makers.runtime(coordinator=secrets))
    assert _template(given, C)["spec"]["imagePullSecrets"] == [{"name": "mirror"}, {"name": "mine"}]


def test_pods_are_annotated_for_a_prometheus_that_finds_them_so(example: Example) -> None:
    given = dataclasses.replace(example.make(), settings=JobSettings(scrape_annotations=True))
    for role in enums.STANDARD_ROLES:
        annotations = _template(given, role)["metadata"]["annotations"]
        assert annotations["prometheus.io/port"] == "8080"
        assert annotations["prometheus.io/scrape"] == "true"
    assert "prometheus.io/scrape" not in _template(example.make(), C)["metadata"]["annotations"]


def test_with_tls_a_pod_mounts_its_own_roles_certificate_and_no_ca_key(example: Example) -> None:
    given = example.make()
    placement = cluster_placement.cluster_placement(
        given.job, verifier_cores=2, tls=cluster_placement.tls_files("example.org")
    )
    given = dataclasses.replace(given, configs=resolve.resolve(given.job, placement))
    for role in enums.STANDARD_ROLES:
        pod = _template(given, role)["spec"]
        assert [volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume] == [
            f"sums-tls-{role}"
        ]
        assert {"name": "rljob-tls", "mountPath": "/etc/rljob-tls", "readOnly": True} in _container(given, role)[
            "volumeMounts"
        ]
    assert given.configs.coordinator.tls is not None
    assert given.configs.coordinator.tls.key_file == "/etc/rljob-tls/tls.key"
    assert given.configs.coordinator.tls.trust_domain == "example.org"


def test_one_pod_monitor_finds_all_pods_of_a_job(example: Example) -> None:
    given = dataclasses.replace(example.make(), settings=JobSettings(pod_monitor_labels={"release": "prometheus"}))
    made: Any = services.pod_monitor(given)
    assert made["metadata"]["labels"]["release"] == "prometheus"
    assert made["spec"]["selector"] == {"matchLabels": {"rljob.dev/uid": "u-1"}}
    (endpoint,) = made["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("health", "/metrics")


@pytest.mark.covers("sandbox S-2")
def test_a_verifier_pod_tests_its_isolation_first_with_its_own_posture(example: Example) -> None:
    given = example.make()
    (first,) = _template(given, V)["spec"]["initContainers"]
    service = _container(given, V)
    assert first["securityContext"] == service["securityContext"]
    assert (first["image"], first["resources"]) == (service["image"], service["resources"])
    assert {mount["name"] for mount in first["volumeMounts"]} == {"rljob-scratch"}
    assert first["args"] == [
        "--require=no_new_privileges,capabilities,read_only_root,no_token,landlock,seccomp,confined",
        "--closed-network",
    ]
    for role in (C, R, T):
        assert "initContainers" not in _template(given, role)["spec"]


@pytest.mark.covers("sandbox S-2")
def test_the_runtime_class_that_isolation_asks_for_is_the_verifiers_alone(example: Example) -> None:
    rewards = [{"name": "sum", "type": "exact"}]
    given = example.make(
        verifier={"rewards": rewards, "isolation": {"type": "RuntimeClass", "runtimeClassName": "gvisor"}}
    )
    verifier = _template(given, V)["spec"]
    assert verifier["runtimeClassName"] == "gvisor"
    assert verifier["initContainers"][0]["args"] == [
        "--require=no_new_privileges,capabilities,read_only_root,no_token,confined",
        "--runtime-class=gvisor",
        "--closed-network",
    ]
    for role in (C, R, T):
        assert "runtimeClassName" not in _template(given, role)["spec"]
    assert "runtimeClassName" not in _template(example.make(), V)["spec"]


def test_no_isolation_requires_no_layer_and_an_installation_may_demand_a_closed_network(example: Example) -> None:
    rewards = [{"name": "sum", "type": "exact"}]
    none = example.make(verifier={"rewards": rewards, "isolation": {"type": "None"}, "allowUnsafe": True})
    assert _template(none, V)["spec"]["initContainers"][0]["args"][0] == "--require="
    strict = dataclasses.replace(example.make(), settings=JobSettings(require_network_policy=True))
    assert _template(strict, V)["spec"]["initContainers"][0]["args"][0].endswith(",network")
    open_network = example.make(security={"networkPolicy": False})
    assert "--closed-network" not in _template(open_network, V)["spec"]["initContainers"][0]["args"]
