"""`environment`: who has one, and what it comes to on one machine and in a cluster."""

import json

import yaml

from rljob_api import cluster_placement, enums, resolve, suites
from rljob_api.manifest.job import RLJob
from rljob_api.validation.load import load_manifest
from rljob_testing import examples

EXAMPLE = examples.EXAMPLES / "shell-tasks-cpu.yaml"
E = enums.Role.ENVIRONMENT


def job(**sections: object) -> RLJob:
    document = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    for section, change in sections.items():
        document["spec"][section].update(change)
    return load_manifest(json.dumps(document))


def resolved(made: RLJob) -> resolve.ResolvedJob:
    ports = range(6000, 6000 + resolve.num_local_ports(made))
    placement = resolve.local_placement(
        made, uid="u", run_dir="/run", base_dir="/data", cache_dir="/cache", ports=ports, num_cores=2
    )
    return resolve.resolve(made, placement)


def test_each_replica_on_one_machine_has_ports_of_its_own_and_rollouts_know_all() -> None:
    made = resolved(job(environment={"replicas": 2, "places": 3, "wallSeconds": 60, "scratch": "8Mi"}))
    assert [(each.pod, each.num_places, each.wall_s, each.scratch_bytes) for each in made.environments] == [
        ("environment-0", 3, 60.0, 8 << 20),
        ("environment-1", 3, 60.0, 8 << 20),
    ]
    assert made.rollouts[0].environment_addresses == tuple(f"127.0.0.1:{each.port}" for each in made.environments)
    ports = [port for each in made.environments for port in (each.port, each.health_port)]
    others = [made.verifiers[0].port, made.verifiers[0].health_port, made.trainer.rendezvous_port]
    assert len({*ports, *others}) == len(ports) + len(others)
    assert all(each in made.configs for each in made.environments)


def test_rollouts_in_a_cluster_know_the_service_and_replicas_share_a_config() -> None:
    made = job(environment={"replicas": 3})
    configs = resolve.resolve(made, cluster_placement.cluster_placement(made, verifier_cores=1))
    assert configs.rollouts[0].environment_addresses == ("shell-tasks-cpu-environment.default.svc:50056",)
    (config,) = configs.environments
    assert (config.port, config.pod) == (50056, "environment")


def test_a_job_has_an_environment_exactly_where_it_is_written() -> None:
    assert E in suites.programs(job().spec)
    plain = load_manifest((examples.EXAMPLES / "addition-cpu.yaml").read_text(encoding="utf-8"))
    assert E not in suites.roles(plain.spec)
    assert resolved(plain).environments == ()
    assert list(suites.places(plain.spec)) == []
    assert resolve.num_local_ports(job()) == resolve.num_local_ports(plain) + 2


def test_a_plan_says_how_many_episodes_work_at_once() -> None:
    (line,) = suites.places(job(environment={"replicas": 2, "places": 3}).spec)
    assert line.startswith("6 episodes have a place at once, 3 in each of 2; of the 128 in flight")


def test_a_job_whose_tools_are_all_of_servers_needs_no_environment_and_has_room_for_their_declarations() -> None:
    document = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    del document["spec"]["environment"]
    servers = [{"name": "search", "url": "http://search:8000/mcp"}, {"name": "clock", "command": ["clock"]}]
    document["spec"]["data"]["template"] = "chat"

    def served(**config: object) -> RLJob:
        document["spec"]["workflow"]["config"] = {"mcp": servers, **config}
        return load_manifest(json.dumps(document))

    assert E not in suites.programs(served().spec)
    assert [(each.name, each.place) for each in served().spec.workflow.tool_servers] == [
        ("search", "http://search:8000/mcp"),
        ("clock", "clock"),
    ]
    default, more = (served(**each).spec.longest_request for each in ({}, {"declarationTokens": 3048}))
    assert more - default == 1000


def test_the_engine_has_room_for_all_turns_and_what_commands_give() -> None:
    config = {"tools": ["shell"], "notation": "terminal"}
    one, many = (
        job(workflow={"config": {**config, "numTurns": turns, "outputChars": 128}}).spec.longest_request
        for turns in (1, 3)
    )
    assert many - one == 2 * (24 + 128 + 128)
