import dataclasses
import json
from typing import Any, Protocol

import pytest

from rljob_api import enums, process_config, resolve
from rljob_api.manifest.job import RLJob
from rljob_api.validation.load import load_manifest
from rljob_operator.resources import config, inputs, network, services
from rljob_testing import examples

EXAMPLE = examples.EXAMPLES / "addition-cpu.yaml"
C, R, V, T = enums.Role.COORDINATOR, enums.Role.ROLLOUT, enums.Role.VERIFIER, enums.Role.TRAINER


@pytest.fixture
def given() -> inputs.Inputs:
    job = load_manifest(EXAMPLE.read_text())
    job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": "u-1", "namespace": "team"})})
    return inputs.Inputs(job=job, configs=_resolved(job), images=dict.fromkeys(enums.STANDARD_ROLES, "example/rljob:1"))


class Example(Protocol):
    def make(self, **sections: object) -> inputs.Inputs: ...


def _resolved(job: RLJob) -> resolve.ResolvedJob:
    placement = resolve.local_placement(
        job, uid="u-1", run_dir="/run", base_dir="/data", cache_dir="/cache", ports=range(6000, 6100), num_cores=2
    )
    return resolve.resolve(job, placement)


def _peers(rule: object) -> list[str]:
    assert isinstance(rule, list)
    return [peer["podSelector"]["matchLabels"]["rljob.dev/role"] for peer in rule if "rljob.dev/role" in str(peer)]


@pytest.mark.parametrize(
    ("role", "callers", "called"),
    [
        (C, ["rollout", "trainer"], []),
        (R, ["rollout"], ["coordinator", "verifier", "rollout"]),
        (T, ["trainer"], ["coordinator", "trainer"]),
        (V, ["rollout"], []),
    ],
)
def test_a_role_reaches_and_is_reached_by_its_peers_alone(
    given: inputs.Inputs, role: enums.Role, callers: list[str], called: list[str]
) -> None:
    spec = network.network_policy(given, role)["spec"]
    assert isinstance(spec, dict)
    assert [name for rule in spec["ingress"] for name in _peers(rule["from"])] == callers
    assert [name for rule in spec["egress"] for name in _peers(rule.get("to", []))] == called


@pytest.mark.covers("security")
def test_rollouts_reach_each_other_on_the_port_for_weights_alone(example: Example) -> None:
    spec: Any = network.network_policy(example.make(), R)["spec"]
    (rule,) = [rule for rule in spec["ingress"] if _peers(rule["from"])]
    assert rule["ports"] == [{"protocol": "TCP", "port": 50054}]


@pytest.mark.covers("security")
def test_where_weights_are_broadcast_trainer_and_rollouts_alone_reach_each_other_on_ports_of_the_kernels_choice(
    example: Example,
) -> None:
    given = example.make(weightSync={"transport": "gloo"})
    # What Linux has in net.ipv4.ip_local_port_range.
    chosen = {"protocol": "TCP", "port": 32768, "endPort": 60999}
    broadcasts: dict[enums.Role, list[list[str]]] = {}
    for role in (C, R, V, T):
        spec: Any = network.network_policy(given, role)["spec"]
        broadcasts[role] = [_peers(rule["from"]) for rule in spec["ingress"] if chosen in rule.get("ports", [])]
    assert broadcasts == {C: [], R: [["rollout", "trainer"]], V: [], T: [["rollout"]]}
    trainer: Any = network.network_policy(given, T)["spec"]
    # Where announcements are, and not where the trainer's own ranks meet.
    assert given.configs.trainer.broadcasts is not None
    assert chosen["port"] <= given.configs.trainer.broadcasts.port <= chosen["endPort"]
    assert not chosen["port"] <= given.configs.trainer.rendezvous_port <= chosen["endPort"]
    assert [_peers(rule["from"]) for rule in trainer["ingress"] if "ports" not in rule] == [["trainer"]]
    called = [name for rule in trainer["egress"] for name in _peers(rule.get("to", []))]
    assert called == ["coordinator", "trainer", "rollout"]


@pytest.mark.covers("security")
def test_where_weights_are_not_broadcast_no_rollout_reaches_the_trainer(given: inputs.Inputs) -> None:
    trainer: Any = network.network_policy(given, T)["spec"]
    assert [name for rule in trainer["ingress"] for name in _peers(rule["from"])] == ["trainer"]


@pytest.mark.covers("security")
def test_agents_reach_the_gateway_of_their_job_alone(example: Example) -> None:
    given = example.make(
        workflow={"type": "external"}, rollout={"gateway": {"port": 50_060}, "sampling": {"maxTokens": 8}}
    )
    spec: Any = network.network_policy(given, R)["spec"]
    opened = [rule for rule in spec["ingress"] if {"protocol": "TCP", "port": 50_060} in rule["ports"]]
    agents = {"podSelector": {"matchLabels": {"rljob.dev/agents": given.job.metadata.name}}}
    assert opened == [{"from": [agents], "ports": [{"protocol": "TCP", "port": 50_060}]}]
    served: Any = services.service(given, R)["spec"]
    assert {"name": "gateway", "port": 50_060, "targetPort": "gateway", "protocol": "TCP"} in served["ports"]


def _dns_rules(given: inputs.Inputs, role: enums.Role) -> list[dict[str, Any]]:
    spec: Any = network.network_policy(given, role)["spec"]
    return [rule for rule in spec["egress"] if {"protocol": "UDP", "port": 53} in rule.get("ports", [])]


def test_every_policy_but_the_verifiers_admits_dns_of_the_cluster_on_both_protocols(given: inputs.Inputs) -> None:
    for role in enums.STANDARD_ROLES:
        rules = _dns_rules(given, role)
        assert len(rules) == (0 if role is V else 1)
        for rule in rules:
            assert [(port["protocol"], port["port"]) for port in rule["ports"]] == [("UDP", 53), ("TCP", 53)]
            pods, cache = rule["to"]
            assert pods["podSelector"]["matchLabels"] == {"k8s-app": "kube-dns"}
            assert cache == {"ipBlock": {"cidr": "169.254.20.10/32"}}


def test_dns_may_be_opened_to_everybody(given: inputs.Inputs) -> None:
    opened = dataclasses.replace(given, settings=given.settings.model_copy(update={"dns": ()}))
    (rule,) = _dns_rules(opened, C)
    assert "to" not in rule


def test_addresses_of_cloud_identities_are_closed_until_they_are_asked_for(given: inputs.Inputs) -> None:
    def reached(allow: bool) -> set[tuple[str, int]]:
        settings = given.settings.model_copy(update={"allow_metadata_address": allow})
        spec: Any = network.network_policy(dataclasses.replace(given, settings=settings), C)["spec"]
        blocks = [
            (peer["ipBlock"]["cidr"], rule) for rule in spec["egress"] for peer in rule["to"] if "ipBlock" in peer
        ]
        return {(cidr, port["port"]) for cidr, rule in blocks for port in rule["ports"]}

    assert reached(True) - reached(False) == {
        ("169.254.169.254/32", 80),
        ("169.254.169.252/32", 988),
        ("169.254.170.23/32", 80),
        ("fd00:ec2::23/128", 80),
    }


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        ({}, {"rljob.dev/metrics": "true"}),
        ({"metrics_namespaces": {"team": "sre"}}, {"team": "sre"}),
        ({"metrics_namespaces": {"team": "sre"}, "metrics_from_everywhere": True}, None),
    ],
)
def test_only_namespaces_that_were_named_may_scrape(
    given: inputs.Inputs, settings: dict[str, object], labels: dict[str, str] | None
) -> None:
    changed = dataclasses.replace(given, settings=given.settings.model_copy(update=settings))
    spec: Any = network.network_policy(changed, R)["spec"]
    health = [{"protocol": "TCP", "port": inputs.first_config(given, R).health_port}]
    (rule,) = [rule for rule in spec["ingress"] if rule.get("ports") == health]
    assert rule["from"] == [{"namespaceSelector": {} if labels is None else {"matchLabels": labels}}]


@pytest.mark.covers("security")
def test_peers_are_selected_by_the_uid_so_that_another_job_of_the_namespace_is_no_peer(given: inputs.Inputs) -> None:
    other = given.job.model_copy(update={"metadata": given.job.metadata.model_copy(update={"uid": "u-2"})})
    second = dataclasses.replace(given, job=other)
    assert inputs.selector(given, C)["rljob.dev/uid"] == "u-1"
    assert inputs.selector(given, C) != inputs.selector(second, C)


@pytest.mark.covers("security")
def test_an_account_mounts_no_token(given: inputs.Inputs) -> None:
    account = services.service_account(given, V)
    assert account["automountServiceAccountToken"] is False


def test_every_child_is_owned_by_the_job_and_lies_in_its_namespace(given: inputs.Inputs) -> None:
    children = [config.config_map(given, trainer_template={})]
    for role in enums.STANDARD_ROLES:
        children += [services.service_account(given, role), network.network_policy(given, role)]
    for child in children:
        metadata = child["metadata"]
        assert isinstance(metadata, dict)
        assert metadata["namespace"] == "team"
        assert [(owner["uid"], owner["controller"]) for owner in metadata["ownerReferences"]] == [("u-1", True)]
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "rljob-operator"


def test_the_config_map_holds_what_each_program_reads_and_the_pinned_images(given: inputs.Inputs) -> None:
    child = config.config_map(given, trainer_template={"spec": {}})
    data = child["data"]
    assert isinstance(data, dict)
    assert set(data) == {f"{role}.json" for role in enums.STANDARD_ROLES} | {"images.json", "trainer-template.json"}
    assert process_config.TrainerConfig.model_validate_json(data["trainer.json"]) == given.configs.trainer
    assert json.loads(data["images.json"])["rollout"] == "example/rljob:1"
    assert json.loads(data["trainer-template.json"]) == {"spec": {}}
