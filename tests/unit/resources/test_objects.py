import dataclasses
import json
import pathlib

import pytest

from rljob_api import names, resolve, roles
from rljob_api.job import RLJob, load_manifest
from rljob_operator.resources import configmap, inputs, network_policies, service_accounts

EXAMPLE = pathlib.Path(__file__).parents[3] / "crds" / "examples" / "addition-cpu.yaml"
C, R, V, T = names.Role.COORDINATOR, names.Role.ROLLOUT, names.Role.VERIFIER, names.Role.TRAINER


@pytest.fixture
def given() -> inputs.Inputs:
    job = load_manifest(EXAMPLE.read_text())
    job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": "u-1", "namespace": "team"})})
    return inputs.Inputs(job=job, configs=_resolved(job), images=dict.fromkeys(names.Role, "example/rljob:1"))


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
    given: inputs.Inputs, role: names.Role, callers: list[str], called: list[str]
) -> None:
    spec = network_policies.network_policy(given, role)["spec"]
    assert isinstance(spec, dict)
    assert [name for rule in spec["ingress"] for name in _peers(rule["from"])] == callers
    assert [name for rule in spec["egress"] for name in _peers(rule.get("to", []))] == called


def test_every_policy_but_the_verifiers_admits_dns_on_both_protocols(given: inputs.Inputs) -> None:
    for role in names.Role:
        spec = network_policies.network_policy(given, role)["spec"]
        assert isinstance(spec, dict)
        ports = [
            (port["protocol"], port["port"]) for rule in spec["egress"] if "to" not in rule for port in rule["ports"]
        ]
        assert ports == ([] if role is V else [("UDP", 53), ("TCP", 53)])


def test_peers_are_selected_by_the_uid_so_that_another_job_of_the_namespace_is_no_peer(given: inputs.Inputs) -> None:
    other = given.job.model_copy(update={"metadata": given.job.metadata.model_copy(update={"uid": "u-2"})})
    second = dataclasses.replace(given, job=other)
    assert inputs.selector(given, C)["rljob.dev/uid"] == "u-1"
    assert inputs.selector(given, C) != inputs.selector(second, C)


def test_an_account_mounts_no_token(given: inputs.Inputs) -> None:
    account = service_accounts.service_account(given, V)
    assert account["automountServiceAccountToken"] is False


def test_every_child_is_owned_by_the_job_and_lies_in_its_namespace(given: inputs.Inputs) -> None:
    children = [configmap.config_map(given)]
    for role in names.Role:
        children += [service_accounts.service_account(given, role), network_policies.network_policy(given, role)]
    for child in children:
        metadata = child["metadata"]
        assert isinstance(metadata, dict)
        assert metadata["namespace"] == "team"
        assert [(owner["uid"], owner["controller"]) for owner in metadata["ownerReferences"]] == [("u-1", True)]
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "rljob-operator"


def test_the_config_map_holds_what_each_program_reads_and_the_pinned_images(given: inputs.Inputs) -> None:
    child = configmap.config_map(given)
    data = child["data"]
    assert isinstance(data, dict)
    assert set(data) == {f"{role}.json" for role in names.Role} | {"images.json"}
    assert roles.TrainerConfig.model_validate_json(data["trainer.json"]) == given.configs.trainer
    assert json.loads(data["images.json"])["rollout"] == "example/rljob:1"
    assert len(data) == 5
