"""What servers of tools change of a job in a cluster: where its rollouts may go."""

from typing import Any, Protocol

import pytest

from rljob_api import enums
from rljob_operator.resources import inputs, network

SERVERS = [
    {"name": "search", "url": "http://search.tools.svc:8000/mcp"},
    {"name": "more", "url": "http://more.tools.svc:8000/mcp"},
    {"name": "web", "url": "https://example.com/mcp"},
    {"name": "clock", "command": ["clock"]},
]


class Example(Protocol):
    def make(self, **sections: object) -> inputs.Inputs: ...


def egress(example: Example, servers: list[dict[str, object]], role: enums.Role = enums.Role.ROLLOUT) -> list[Any]:
    made = example.make(workflow={"type": "tool_use", "config": {"mcp": servers}})
    policy: Any = network.network_policy(made, role)["spec"]
    return list(policy["egress"])


def test_rollouts_reach_the_ports_of_the_servers_everywhere_but_where_clouds_hand_out_credentials(
    example: Example,
) -> None:
    (opened,) = (rule for rule in egress(example, SERVERS) if rule not in egress(example, SERVERS[3:]))
    assert opened["ports"] == [{"protocol": "TCP", "port": 443}, {"protocol": "TCP", "port": 8000}]
    assert opened["to"][0] == {"namespaceSelector": {}}
    assert [peer["ipBlock"]["except"] for peer in opened["to"][1:]] == [["169.254.0.0/16"], ["fe80::/10"]]


@pytest.mark.parametrize("role", [enums.Role.COORDINATOR, enums.Role.VERIFIER, enums.Role.TRAINER])
def test_servers_open_nothing_to_other_roles(example: Example, role: enums.Role) -> None:
    assert egress(example, SERVERS, role) == egress(example, SERVERS[3:], role)
