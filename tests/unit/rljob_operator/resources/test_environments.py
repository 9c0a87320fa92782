import json
from typing import Any, Protocol

import pytest

from rljob_api import enums
from rljob_api.manifest.job import RLJob
from rljob_operator.queueing import workload
from rljob_operator.resources import children, config, inputs, network, workloads

E, R, V, T = enums.Role.ENVIRONMENT, enums.Role.ROLLOUT, enums.Role.VERIFIER, enums.Role.TRAINER
WORKFLOW = {"type": "tool_use", "config": {"tools": ["shell"], "notation": "terminal"}}
POD = {
    "nodeSelector": {"pool": "graders"},
    "env": [{"name": "OF_VERIFIERS", "value": "1"}],
    "resources": {"limits": {"memory": "3Gi"}},
}
VERIFIER = {
    "rewards": [{"name": "sum", "type": "exact"}],
    "pod": POD,
    "isolation": {"type": "RuntimeClass", "runtimeClassName": "kata"},
}


class Example(Protocol):
    def make(self, **sections: object) -> inputs.Inputs: ...

    def of(self, job: RLJob) -> inputs.Inputs: ...


@pytest.fixture
def with_shells(example: Example) -> inputs.Inputs:
    environment = {"replicas": 2, "places": 2, "memory": "64Mi", "scratch": "1Mi"}
    return example.make(workflow=WORKFLOW, environment=environment, verifier=VERIFIER)


def everything(made: inputs.Inputs) -> list[Any]:
    return [*children.foundation(made), *children.workloads(made, attempt=1, rollouts=1)]


def pod_of(manifest: Any) -> Any:
    return manifest["spec"]["template"]["spec"]


def test_a_job_without_a_shell_has_no_child_of_an_environment(example: Example) -> None:
    assert "environment" not in {each["metadata"]["name"].rpartition("-")[2] for each in everything(example.make())}
    assert "environment.json" not in str(children.foundation(example.make()))


def test_an_environment_has_a_policy_an_account_a_service_and_its_pods(with_shells: inputs.Inputs) -> None:
    own = {each["kind"]: each for each in everything(with_shells) if each["metadata"]["name"] == "sums-environment"}
    assert set(own) == {"NetworkPolicy", "ServiceAccount", "Service", "Deployment"}
    assert own["Deployment"]["spec"]["replicas"] == 2
    (container,) = pod_of(own["Deployment"])["containers"]
    assert container["command"] == ["rljob-environment"]
    assert [(port["name"], port["containerPort"]) for port in container["ports"]] == [
        ("health", 8080),
        ("places", 50056),
    ]
    assert own["Service"]["spec"]["clusterIP"] == "None"
    assert own["Service"]["spec"]["publishNotReadyAddresses"] is False


def test_its_pods_are_confined_and_placed_as_verifiers_and_have_nothing_else_of_theirs(
    with_shells: inputs.Inputs,
) -> None:
    own, theirs = (
        pod_of(made)
        for made in (
            workloads.environment_deployment(with_shells, replicas=1),
            workloads.verifier_deployment(with_shells, replicas=1),
        )
    )
    for key in ("securityContext", "nodeSelector", "runtimeClassName", "automountServiceAccountToken"):
        assert own[key] == theirs[key], key
    assert own["runtimeClassName"] == "kata"
    assert own["containers"][0]["securityContext"] == theirs["containers"][0]["securityContext"]
    assert own["terminationGracePeriodSeconds"] == theirs["terminationGracePeriodSeconds"]
    assert "OF_VERIFIERS" not in json.dumps(own)


def test_a_pod_has_what_all_its_places_need_at_their_limits(with_shells: inputs.Inputs, example: Example) -> None:
    made: Any = pod_of(workloads.environment_deployment(with_shells, replicas=1))
    (container,) = made["containers"]
    mib = 1 << 20
    limits = {"cpu": "1", "memory": str((256 + 2 * (64 + 64)) * mib), "ephemeral-storage": str((512 + 2) * mib)}
    assert container["resources"] == {"requests": limits, "limits": limits}
    (scratch,) = (volume for volume in made["volumes"] if volume["name"] == "rljob-scratch")
    assert scratch["emptyDir"] == {"sizeLimit": str((256 + 2) * mib)}
    written = example.make(
        workflow=WORKFLOW, environment={"resources": {"limits": {"cpu": "3", "memory": "9Gi"}}}, verifier=VERIFIER
    )
    (container,) = pod_of(workloads.environment_deployment(written, replicas=1))["containers"]
    assert {key: container["resources"]["requests"][key] for key in ("cpu", "memory")} == {"cpu": "3", "memory": "9Gi"}


def test_rollouts_alone_reach_it_and_it_reaches_nothing(with_shells: inputs.Inputs) -> None:
    policy: Any = network.network_policy(with_shells, E)["spec"]
    assert (policy["egress"], policy["policyTypes"]) == ([], ["Ingress", "Egress"])
    callers, scrapers = policy["ingress"]
    assert [peer["podSelector"]["matchLabels"]["rljob.dev/role"] for peer in callers["from"]] == ["rollout"]
    assert [port["port"] for port in callers["ports"]] == [50056]
    assert [port["port"] for port in scrapers["ports"]] == [8080]

    def called(role: enums.Role) -> str:
        return json.dumps(network.network_policy(with_shells, role)["spec"]["egress"])  # type: ignore[index]  # a policy's

    assert '"rljob.dev/role": "environment"' in called(R)
    assert '"rljob.dev/role": "environment"' not in called(T)
    assert called(V) == "[]"


def test_it_reads_its_own_config_and_rollouts_its_service(with_shells: inputs.Inputs) -> None:
    data: Any = config.config_map(with_shells, trainer_template={})["data"]
    assert json.loads(data["environment.json"])["num_places"] == 2
    assert json.loads(data["rollout.json"])["environment_addresses"] == ["sums-environment.team.svc:50056"]


def test_it_counts_in_the_queue(with_shells: inputs.Inputs, example: Example) -> None:
    def pod_sets(made: inputs.Inputs) -> dict[str, int]:
        spec: Any = workload.workload(made, queue="q")["spec"]
        return {each["name"]: each["count"] for each in spec["podSets"]}

    assert pod_sets(with_shells)["environment"] == 2
    assert "environment" not in pod_sets(example.make())


def test_the_place_of_the_verifiers_rolls_it_and_their_number_does_not(example: Example) -> None:
    def hash_of(**verifier: object) -> str:
        made = example.make(workflow=WORKFLOW, environment={}, verifier={**VERIFIER, **verifier})
        return config.template_hash(made, E)

    assert hash_of() == hash_of(replicas=3)
    assert hash_of() != hash_of(pod={"nodeSelector": {"a": "b"}})
