import json
from typing import Any, Protocol

import pytest

from rljob_api import enums
from rljob_api.manifest.job import RLJob
from rljob_operator.queueing import workload
from rljob_operator.resources import children, config, inputs, network, workloads

J, R, V, T = enums.Role.JUDGE, enums.Role.ROLLOUT, enums.Role.VERIFIER, enums.Role.TRAINER
KEY = {"name": "openai", "key": "token"}
VARIABLE = "RLJOB_JUDGE_KEY_OPENAI_TOKEN"


class Example(Protocol):
    def make(self, **sections: object) -> inputs.Inputs: ...

    def of(self, job: RLJob) -> inputs.Inputs: ...


def judge(name: str = "helpful", **options: object) -> dict[str, object]:
    return {"name": name, "type": "judge", "config": {"url": "https://example.com/v1", "model": "m", **options}}


@pytest.fixture
def judged(example: Example) -> inputs.Inputs:
    rewards = [{"name": "sum", "type": "exact"}, judge(apiKey=KEY), judge("local", url="http://judge.team.svc:8000/v1")]
    pod = {
        "nodeSelector": {"pool": "graders"},
        "env": [{"name": "OF_VERIFIERS", "value": "1"}],
        "resources": {"limits": {"memory": "3Gi"}},
    }
    return example.make(verifier={"rewards": rewards, "pod": pod})


def names(objects: list[Any]) -> set[tuple[str, str]]:
    return {(each["kind"], each["metadata"]["name"]) for each in objects}


def everything(made: inputs.Inputs) -> list[Any]:
    return [*children.foundation(made), *children.workloads(made, attempt=1, rollouts=1)]


def container_of(manifest: Any) -> Any:
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    return container


def test_a_job_without_a_judge_has_no_child_of_one(example: Example) -> None:
    assert not [name for name in names(everything(example.make())) if "judge" in str(name)]
    assert "judge.json" not in str(children.foundation(example.make()))


def test_a_judge_has_a_policy_an_account_a_service_and_one_pod(judged: inputs.Inputs) -> None:
    own = {name for name in names(everything(judged)) if name[1] == "sums-judge"}
    assert {kind for kind, _ in own} == {"NetworkPolicy", "ServiceAccount", "Service", "Deployment"}
    made = workloads.judge_deployment(judged)
    assert container_of(made)["command"] == ["rljob-judge"]
    assert made["spec"]["replicas"] == 1  # type: ignore[index]  # it is a Deployment's


def test_the_key_is_in_the_judges_pod_alone(judged: inputs.Inputs) -> None:
    (variable,) = (each for each in container_of(workloads.judge_deployment(judged))["env"] if each["name"] == VARIABLE)
    assert variable["valueFrom"] == {"secretKeyRef": KEY}
    others = [each for each in everything(judged) if each["metadata"]["name"] != "sums-judge"]
    assert VARIABLE not in json.dumps(others)
    assert "secretKeyRef" not in json.dumps(others)


def test_a_judges_pod_has_the_place_of_the_verifiers_and_nothing_else_of_theirs(judged: inputs.Inputs) -> None:
    made: Any = workloads.judge_deployment(judged)
    assert made["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "graders"}
    assert "OF_VERIFIERS" not in json.dumps(made)
    assert container_of(made)["resources"] == {"requests": {"cpu": "100m", "memory": "256Mi"}}


def test_a_judge_reaches_dns_and_the_ports_of_its_urls_and_rollouts_reach_it(judged: inputs.Inputs) -> None:
    policy: Any = network.network_policy(judged, J)["spec"]
    dns, models = policy["egress"]
    assert {port["port"] for port in dns["ports"]} == {53}
    assert [port["port"] for port in models["ports"]] == [443, 8000]
    assert [peer["ipBlock"]["except"] for peer in models["to"] if "ipBlock" in peer] == [
        ["169.254.0.0/16"],
        ["fe80::/10"],
    ]
    callers, scrapers = policy["ingress"]
    assert [peer["podSelector"]["matchLabels"]["rljob.dev/role"] for peer in callers["from"]] == ["rollout"]
    assert [port["port"] for port in callers["ports"]] == [50053]
    assert [port["port"] for port in scrapers["ports"]] == [8080]


def test_rollouts_may_call_the_judge_and_verifiers_still_reach_nothing(judged: inputs.Inputs) -> None:
    def called(role: enums.Role) -> str:
        return json.dumps(network.network_policy(judged, role)["spec"]["egress"])  # type: ignore[index]  # a policy's

    assert '"rljob.dev/role": "judge"' in called(R)
    assert '"rljob.dev/role": "judge"' not in called(T)
    assert called(V) == "[]"


def test_each_process_reads_its_own_rewards(judged: inputs.Inputs) -> None:
    data: Any = config.config_map(judged, trainer_template={})["data"]
    assert [each["name"] for each in json.loads(data["judge.json"])["rewards"]] == ["helpful", "local"]
    assert [each["name"] for each in json.loads(data["verifier.json"])["rewards"]] == ["sum"]
    assert json.loads(data["rollout.json"])["judge_address"] == "sums-judge.team.svc:50053"


def test_a_judge_counts_in_the_queue(judged: inputs.Inputs, example: Example) -> None:
    def pod_sets(made: inputs.Inputs) -> list[tuple[str, int]]:
        spec: Any = workload.workload(made, queue="q")["spec"]
        return [(each["name"], each["count"]) for each in spec["podSets"]]

    assert ("judge", 1) in pod_sets(judged)
    assert "judge" not in dict(pod_sets(example.make()))


def test_the_place_of_the_verifiers_rolls_the_judge_and_the_judges_rewards_do_too(
    judged: inputs.Inputs, example: Example
) -> None:
    def hash_of(**verifier: object) -> str:
        rewards = [judge(apiKey=KEY)]
        return config.template_hash(example.make(verifier={"rewards": rewards, **verifier}), J)

    assert hash_of() == hash_of(replicas=3)
    assert len({hash_of(), hash_of(pod={"nodeSelector": {"a": "b"}}), hash_of(rewards=[judge(model="n")])}) == 3


@pytest.fixture
def served(example: Example) -> inputs.Inputs:
    """A job whose judge has a model of its own, on GPUs."""
    pod = {
        "image": "registry.example/rollout@sha256:" + "a" * 64,
        "nodeSelector": {"pool": "gpus"},
        "env": [{"name": "HF_ENDPOINT", "value": "https://hub.example"}],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    return example.make(
        device="cuda",
        model={"name": "org/policy", "source": {"secretName": "hub"}},
        rollout={"pod": pod},
        judge={"model": "org/judge", "tensorParallelSize": 2, "resources": {"requests": {"memory": "64Gi"}}},
        verifier={"rewards": [judge(url="", model=""), judge("far", apiKey=KEY)]},
    )


def test_a_judge_with_a_model_is_made_as_a_rollout_is_with_resources_of_its_own(served: inputs.Inputs) -> None:
    made: Any = workloads.judge_deployment(served)
    container, spec = container_of(made), made["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"pool": "gpus"}
    assert container["resources"] == {
        "requests": {"cpu": "250m", "memory": "64Gi"},
        "limits": {"nvidia.com/gpu": "2"},
    }
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert variables["HF_ENDPOINT"] == "https://hub.example"
    assert variables["HF_HOME"].endswith("/hub")
    assert VARIABLE in variables
    assert container["envFrom"] == [{"secretRef": {"name": "hub"}}]
    assert {"rljob-cache", "rljob-shm"} <= {each["name"] for each in spec["volumes"]}
    assert [port["name"] for port in container["ports"]] == ["health", "verify"], "the model is on loopback"


def test_a_judge_with_a_model_reaches_where_rollouts_get_theirs(served: inputs.Inputs) -> None:
    own: Any = network.network_policy(served, J)["spec"]["egress"]
    rollouts: Any = network.network_policy(served, R)["spec"]["egress"]
    outside = [rule for rule in rollouts if "ipBlock" in json.dumps(rule)]
    assert outside
    assert all(rule in own for rule in outside)
    assert [port["port"] for port in own[-1]["ports"]] == [443], "and the port of the other judge"


def test_a_judge_with_a_model_alone_may_not_reach_every_port(example: Example) -> None:
    made = example.make(judge={"model": "org/judge"}, verifier={"rewards": [judge(url="", model="")]})
    egress: Any = network.network_policy(made, J)["spec"]["egress"]
    assert all(rule.get("ports") for rule in egress)


def test_a_judges_pods_change_with_those_of_whom_it_is_placed_with(example: Example, served: inputs.Inputs) -> None:
    other = {"pod": {"nodeSelector": {"pool": "others"}}}
    rewards = [judge(url="", model="")]
    plain, of_rollouts, of_verifiers = (
        config.template_hash(made, J)
        for made in (
            example.make(judge={"model": "org/judge"}, verifier={"rewards": rewards}),
            example.make(judge={"model": "org/judge"}, verifier={"rewards": rewards}, rollout=other),
            example.make(judge={"model": "org/judge"}, verifier={"rewards": rewards, **other}),
        )
    )
    assert plain != of_rollouts
    assert plain == of_verifiers
