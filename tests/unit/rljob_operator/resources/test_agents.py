"""The agents of a job as a cluster has them: a confined pod of the user's image, and where it may go."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any, Protocol

import pytest

from rljob_api import cluster_placement, enums, resolve, suites
from rljob_api.manifest.job import RLJob
from rljob_operator.queueing import workload
from rljob_operator.resources import agents, children, config, inputs, network, services, workloads

A, R, V, T, C = (
    enums.Role.AGENTS,
    enums.Role.ROLLOUT,
    enums.Role.VERIFIER,
    enums.Role.TRAINER,
    enums.Role.COORDINATOR,
)
KEY = {"name": "RLJOB_GATEWAY_KEY", "valueFrom": {"secretKeyRef": {"name": "gateway", "key": "token"}}}
SEARCH = {"name": "SEARCH_KEY", "valueFrom": {"secretKeyRef": {"name": "search", "key": "token"}}}
EXTERNAL: dict[str, object] = {"workflow": {"type": "external"}}


class Example(Protocol):
    def make(self, **sections: object) -> inputs.Inputs: ...

    def of(self, job: RLJob) -> inputs.Inputs: ...


def made(example: Example, **spec: object) -> inputs.Inputs:
    """Return the example with agents."""
    pod = {"image": "example/agent:2", "env": [SEARCH, {"name": "HOME", "value": "/own"}]}
    rollout = {
        "engine": {"maxModelLen": 256},
        "sampling": {"maxTokens": 16},
        "gateway": {},
        "pod": {"env": [KEY]},
    }
    return example.make(**EXTERNAL, rollout=rollout, agents={"replicas": 3, "pod": pod, **spec})


def encrypted(job: inputs.Inputs) -> inputs.Inputs:
    """Return a job with certificates, as it is by default."""
    files = cluster_placement.tls_files("cluster.local")
    placement = cluster_placement.cluster_placement(job.job, verifier_cores=2, tls=files)
    return dataclasses.replace(job, configs=resolve.resolve(job.job, placement))


def everything(job: inputs.Inputs) -> list[Any]:
    return [*children.foundation(job), *children.workloads(job, attempt=1, rollouts=1)]


def own(job: inputs.Inputs) -> Any:
    return agents.agents_deployment(job)["spec"]


def box(job: inputs.Inputs) -> Any:
    (container,) = own(job)["template"]["spec"]["containers"]
    return container


def egress(job: inputs.Inputs, role: enums.Role = A) -> Any:
    return network.network_policy(job, role)["spec"]["egress"]  # type: ignore[index]  # a policy's


def test_children_of_a_job_with_agents_are_those_that_were_reviewed(
    example: Example, reviewed: Callable[[str, list[Any]], None]
) -> None:
    job = encrypted(made(example, command=["python", "agent.py"], egress=[{"cidr": "0.0.0.0/0"}]))
    reviewed("agents.yaml", [child for child in everything(job) if child["metadata"]["name"] == "sums-agents"])


def test_agents_are_a_deployment_and_a_policy_and_have_no_account_service_config_or_certificate(
    example: Example,
) -> None:
    theirs = {child["kind"] for child in everything(made(example)) if child["metadata"]["name"] == "sums-agents"}
    assert theirs == {"NetworkPolicy", "Deployment"}
    assert own(made(example))["replicas"] == 3
    assert A not in suites.programs(made(example).job.spec)
    (config_map,) = (child for child in children.foundation(made(example)) if child["kind"] == "ConfigMap")
    assert "agents.json" not in config_map["data"]  # type: ignore[operator]  # a ConfigMap's
    assert not [child for child in everything(example.make()) if child["metadata"]["name"] == "sums-agents"]


@pytest.mark.covers("security")
def test_a_pod_of_agents_is_as_restricted_as_the_others(example: Example) -> None:
    pod = own(made(example))["template"]["spec"]
    others: Any = workloads.verifier_deployment(made(example), replicas=1)["spec"]
    assert pod["securityContext"] == others["template"]["spec"]["securityContext"]
    assert box(made(example))["securityContext"] == others["template"]["spec"]["containers"][0]["securityContext"]
    assert not pod["automountServiceAccountToken"]
    assert not pod["enableServiceLinks"]
    assert "serviceAccountName" not in pod
    assert all("sizeLimit" in volume["emptyDir"] for volume in pod["volumes"] if "emptyDir" in volume)


def test_an_agent_is_told_the_gateway_and_the_file_of_its_key(example: Example) -> None:
    variables = {each["name"]: each.get("value") for each in box(made(example))["env"]}
    assert variables["RLJOB_GATEWAY"] == "http://sums-rollout.team.svc:50055"
    assert variables["RLJOB_GATEWAY_KEY_FILE"] == "/etc/rljob-gateway/key"
    (volume,) = (each for each in own(made(example))["template"]["spec"]["volumes"] if "secret" in each)
    assert volume["secret"]["secretName"] == "gateway"
    assert volume["secret"]["items"] == [{"key": "token", "path": "key"}]
    (mount,) = (each for each in box(made(example))["volumeMounts"] if each["name"] == volume["name"])
    assert mount == {"name": "rljob-gateway", "mountPath": "/etc/rljob-gateway", "readOnly": True}


@pytest.mark.covers("security")
def test_an_agent_of_an_encrypted_gateway_has_the_cas_of_the_job_and_no_certificate_of_a_role(example: Example) -> None:
    job = encrypted(made(example))
    variables = {each["name"]: each.get("value") for each in box(job)["env"]}
    assert variables["RLJOB_GATEWAY"] == "https://sums-rollout.team.svc:50055"
    trusting = ("RLJOB_GATEWAY_CA_FILE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
    assert {variables[name] for name in trusting} == {"/etc/rljob-ca/ca.crt"}
    volumes = [each for each in own(job)["template"]["spec"]["volumes"] if "tls" in str(each.get("secret"))]
    assert volumes == [
        {
            "name": "rljob-ca",
            "secret": {"secretName": "sums-tls-rollout", "items": [{"key": "ca.crt", "path": "ca.crt"}]},
        }
    ]
    assert {"name": "rljob-ca", "mountPath": "/etc/rljob-ca", "readOnly": True} in box(job)["volumeMounts"]


def test_a_gateway_in_plain_text_leaves_alone_whom_an_image_trusts(example: Example) -> None:
    job = made(example)
    assert not [each for each in box(job)["env"] if "CERT" in each["name"] or "CA_" in each["name"]]
    assert not [each for each in own(job)["template"]["spec"]["volumes"] if each["name"] == "rljob-ca"]


def test_an_image_may_trust_whom_it_needs_and_is_told_the_cas_all_the_same(example: Example) -> None:
    env = [{"name": "SSL_CERT_FILE", "value": "/own.pem"}]
    job = encrypted(made(example, pod={"image": "example/agent:2", "env": env}))
    variables = {each["name"]: each.get("value") for each in box(job)["env"]}
    assert variables["SSL_CERT_FILE"] == "/own.pem"
    assert variables["RLJOB_GATEWAY_CA_FILE"] == "/etc/rljob-ca/ca.crt"


def test_rollouts_that_are_dialed_by_name_are_found_while_they_are_behind_or_drain(example: Example) -> None:
    def found(job: inputs.Inputs) -> bool:
        spec: Any = services.service(job, R)["spec"]
        return bool(spec["publishNotReadyAddresses"])

    assert (found(encrypted(made(example))), found(made(example)), found(encrypted(example.make()))) == (
        True, False, False,
    )  # fmt: skip


def test_the_manifest_may_set_a_folder_of_the_image_but_not_where_the_gateway_is(example: Example) -> None:
    env = [{"name": "HOME", "value": "/own"}, {"name": "RLJOB_GATEWAY", "value": "http://elsewhere"}]
    job = made(example, pod={"image": "example/agent:2", "env": env})
    variables = {each["name"]: each.get("value") for each in box(job)["env"]}
    assert variables["HOME"] == "/own"
    assert variables["RLJOB_GATEWAY"] == "http://sums-rollout.team.svc:50055"


def test_secrets_of_agents_are_in_no_other_pod(example: Example) -> None:
    theirs, others = [], []
    for child in everything(made(example)):
        (theirs if child["metadata"]["name"] == "sums-agents" else others).append(json.dumps(child))
    assert any("SEARCH_KEY" in text for text in theirs)
    assert not [text for text in others if "SEARCH_KEY" in text or '"search"' in text]


def test_an_image_runs_its_own_program_unless_the_manifest_names_one(example: Example) -> None:
    assert {"command", "args"}.isdisjoint(box(made(example)))
    named = box(made(example, command=["node"], args=["agent.js"], pod={"image": "i", "commandPrefix": ["nice"]}))
    assert (named["command"], named["args"]) == (["nice", "node"], ["agent.js"])


@pytest.mark.covers("security")
def test_agents_reach_the_gateway_names_and_what_is_declared_alone(example: Example) -> None:
    dns, gateway = egress(made(example))
    assert {port["port"] for port in dns["ports"]} == {53}
    assert gateway["to"] == [{"podSelector": {"matchLabels": {"rljob.dev/uid": "u-1", "rljob.dev/role": "rollout"}}}]
    assert gateway["ports"] == [{"protocol": "TCP", "port": 50055}]
    policy: Any = network.network_policy(made(example), A)["spec"]
    assert policy["ingress"] == []
    assert policy["policyTypes"] == ["Ingress", "Egress"]


def test_a_declared_block_never_holds_the_addresses_that_hand_out_credentials(example: Example) -> None:
    blocks = [{"cidr": "0.0.0.0/0"}, {"cidr": "::/0", "ports": [80]}, {"cidr": "10.1.0.0/16", "ports": [5432]}]
    declared = egress(made(example, egress=blocks))[2:]
    assert [rule["to"][0]["ipBlock"] for rule in declared] == [
        {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]},
        {"cidr": "::/0", "except": ["fe80::/10"]},
        {"cidr": "10.1.0.0/16"},
    ]
    assert [[port["port"] for port in rule["ports"]] for rule in declared] == [[443], [80], [5432]]


def test_rollouts_serve_their_gateway_to_the_job_s_agents_and_nothing_else(example: Example) -> None:
    def ports_for_agents(role: enums.Role) -> list[int]:
        policy: Any = network.network_policy(made(example), role)["spec"]
        rules = [rule for rule in policy["ingress"] if '"rljob.dev/role": "agents"' in json.dumps(rule["from"])]
        return [port["port"] for rule in rules for port in rule["ports"]]

    assert {role: ports_for_agents(role) for role in (R, V, T, C)} == {R: [50055], V: [], T: [], C: []}


def test_agents_count_in_the_queue(example: Example) -> None:
    spec: Any = workload.workload(made(example), queue="q")["spec"]
    assert ("agents", 3) in [(each["name"], each["count"]) for each in spec["podSets"]]


def test_pod_settings_of_agents_roll_the_agents_alone(example: Example) -> None:
    before, after = made(example), made(example, pod={"image": "example/agent:2", "nodeSelector": {"a": "b"}})
    rolled = {role for role in suites.roles(before.job.spec) if _hash(before, role) != _hash(after, role)}
    assert rolled == {A}


def _hash(job: inputs.Inputs, role: enums.Role) -> str:
    return config.template_hash(job, role)
