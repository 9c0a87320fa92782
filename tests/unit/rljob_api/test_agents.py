"""`spec.agents`: what is refused, and where its processes are on one machine."""

import pytest

from rljob_api import enums, errors, process_config, resolve, suites
from rljob_api.manifest.job import RLJob
from rljob_api.validation import rules
from rljob_api.validation.load import load_manifest

MANIFEST = """
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: small}
spec:
  maxSteps: 1
  model: {name: "builtin:smollm2-135m-instruct"}
  data: {template: "raw", train: [{name: t, path: t.jsonl, maxPromptTokens: 32}]}
  algorithm: {groupSize: 4, promptsPerStep: 2}
  workflow: {type: %s}
  rollout: {replicas: 2, %s engine: {maxModelLen: 64, maxNumSeqs: 4}, sampling: {maxTokens: 8}}
  verifier: {rewards: [{name: sum, type: exact}]}
  agents: %s
"""


def job(agents: str, *, workflow: str = "external", gateway: str = "gateway: {port: 50100},") -> RLJob:
    return load_manifest(MANIFEST % (workflow, gateway, agents))


def refused(text: str) -> str:
    with pytest.raises(errors.ManifestError) as raised:
        resolved(load_manifest(text))
    return "\n".join(raised.value.problems)


def resolved(given: RLJob) -> resolve.ResolvedJob:
    placement = resolve.local_placement(
        given,
        uid="u",
        run_dir="/run",
        base_dir="/manifests",
        cache_dir="/cache",
        ports=range(40_000, 40_000 + resolve.num_local_ports(given)),
        num_cores=2,
    )
    return resolve.resolve(given, placement)


@pytest.mark.parametrize(
    ("agents", "problem"),
    [
        ("{egress: [{cidr: 10.0.0.1/8}]}", "spec.agents.egress[0].cidr"),
        ("{egress: [{cidr: 169.254.169.254/32}]}", "where nodes and clouds hand out credentials"),
        ("{egress: [{cidr: 'fe80::/64'}]}", "where nodes and clouds hand out credentials"),
        ("{egress: [{cidr: 10.0.0.0/8, ports: [0]}]}", "spec.agents.egress[0].ports"),
        ("{pod: {commandPrefix: [nice]}}", "spec.agents.pod.commandPrefix"),
    ],
)
def test_what_agents_cannot_be_is_refused_by_field(agents: str, problem: str) -> None:
    assert problem in refused(MANIFEST % ("external", "gateway: {},", agents))


def test_agents_of_a_workflow_that_gives_them_no_task_are_refused() -> None:
    assert "spec.agents.replicas is 1, but workflow.type rlvr gives them no task" in refused(
        MANIFEST % ("rlvr", "", "{}")
    )


def test_a_job_has_the_role_where_it_starts_agents_and_no_program_of_ours_is_one() -> None:
    with_agents = job("{}").spec
    assert enums.Role.AGENTS in suites.roles(with_agents)
    assert enums.Role.AGENTS not in suites.programs(with_agents)
    assert enums.Role.AGENTS not in enums.STANDARD_ROLES


def test_a_cluster_needs_the_key_of_the_gateway_from_a_secret() -> None:
    assert any("RLJOB_GATEWAY_KEY" in problem for problem in rules.cluster_problems(job("{}").spec))
    key = "gateway: {}, pod: {env: [{name: RLJOB_GATEWAY_KEY, valueFrom: {secretKeyRef: {name: g, key: k}}}]},"
    assert not any("RLJOB_GATEWAY_KEY" in problem for problem in rules.cluster_problems(job("{}", gateway=key).spec))


def local(agents: str) -> list[process_config.AgentsConfig]:
    return list(resolved(job(agents)).agents)


def test_processes_of_agents_take_the_gateways_in_turn() -> None:
    found = local("{command: [python3, agent.py], args: [--fast], replicas: 3}")
    assert [each.gateway_url for each in found] == [
        "http://127.0.0.1:50100",
        "http://127.0.0.1:50101",
        "http://127.0.0.1:50100",
    ]
    assert {each.command for each in found} == {("python3", "agent.py", "--fast")}
    assert {each.directory for each in found} == {"/manifests"}


def test_a_value_of_a_variable_is_set_here_and_one_from_elsewhere_is_the_run_s() -> None:
    env = "[{name: MODE, value: fast}, {name: SEARCH_KEY, valueFrom: {secretKeyRef: {name: s, key: k}}}]"
    (found,) = local(f"{{command: [a], pod: {{env: {env}}}}}")
    assert found.variables == {"MODE": "fast"}
    assert found.own_variables == ("SEARCH_KEY",)
