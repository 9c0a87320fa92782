"""Who may talk to whom: one NetworkPolicy a role, the table of docs/design/operator.md#s-14.

Peers are selected by the job's uid, so that two jobs of a namespace cannot reach each other.
"""

import ipaddress
from collections.abc import Mapping, Sequence

from rljob_api import enums, process_config, suites
from rljob_api.manifest.rollout import LINK_LOCAL, lies_in
from rljob_operator.resources import container
from rljob_operator.resources.inputs import (
    MANAGED_BY,
    Inputs,
    Manifest,
    child_name,
    first_config,
    labels,
    metadata,
    selector,
)
from rljob_operator.settings import IDENTITY_ADDRESSES, SCRAPERS, Egress, JobSettings

_C, _R, _V, _T = enums.Role.COORDINATOR, enums.Role.ROLLOUT, enums.Role.VERIFIER, enums.Role.TRAINER
_J, _A, _E = enums.Role.JUDGE, enums.Role.AGENTS, enums.Role.ENVIRONMENT
CALLERS: Mapping[enums.Role, Sequence[enums.Role]] = {
    _C: (_R, _T),
    _R: (_R,),
    _T: (_T,),
    **dict.fromkeys((_V, _J, _E), (_R,)),
}
CALLED: Mapping[enums.Role, Sequence[enums.Role]] = {
    _R: (_C, _V, _R, _J, _E),
    _T: (_C, _T),
    **dict.fromkeys((_C, _V, _J, _E), ()),
}
# They run what a model wrote.
_CLOSED = (_V, _E)
_EVERYWHERE = ("0.0.0.0/0", "::/0")
# Where the trainer broadcasts weights: collectives connect each member with each.
_BROADCAST: Mapping[enums.Role, Sequence[enums.Role]] = {_R: (_R, _T), _T: (_R,)}
# On ports that a pod's kernel chooses (Linux: net.ipv4.ip_local_port_range of a network namespace that is new). The
# meeting point of the trainer's own ranks, which trusts whoever reaches it, is not among them.
_CHOSEN_PORTS: Manifest = {"protocol": "TCP", "port": 32768, "endPort": 60999}
# Not the roles': the first is everyone's who scrapes, the second that of agents.
_PORTS_OF_OTHERS = {"health", "gateway"}
# Pods of the job's namespace with its name here are agents, which rollouts serve tasks to.
AGENTS_LABEL = "rljob.dev/agents"
_DNS_PORTS: Sequence[Manifest] = ({"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53})


def network_policy(inputs: Inputs, role: enums.Role) -> Manifest:
    """Return a role's policy. Verifier and environment reach nothing at all, not even DNS; the judge the ports of its
    URLs, and with a model of its own where rollouts get theirs; agents the gateway, and what the manifest declares for
    them; rollouts the ports of the tools' servers too.
    """
    if role is _A:
        return _policy(inputs, role, ingress=[], egress=_of_agents(inputs))
    egress: list[Manifest] = []
    settings = inputs.settings
    if role not in _CLOSED:
        egress.append(_dns(settings))
    if role not in (*_CLOSED, _J) or container.serves_a_model(inputs, role):
        blocks = (*settings.egress, *(IDENTITY_ADDRESSES if settings.allow_metadata_address else ()))
        egress += [_outside(block) for block in blocks]
    judges = suites.judges(inputs.job.spec).values() if role is _J else ()
    if ports := [options.port for options in judges if options.url]:
        egress.append(_everywhere(ports))
    if role is _R and (served := [each.port for each in inputs.job.spec.workflow.tool_servers if each.url]):
        egress.append(_everywhere(served))
    reached = dict.fromkeys((*CALLED[role], *_broadcast(inputs, role)))
    if called := [each for each in reached if each in suites.roles(inputs.job.spec)]:
        egress.append({"to": _peers(inputs, called)})
    return _policy(inputs, role, ingress=_ingress(inputs, role), egress=egress)


def _policy(inputs: Inputs, role: enums.Role, *, ingress: list[Manifest], egress: list[Manifest]) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(inputs, child_name(inputs, role), labels(inputs, role)),
        "spec": {
            "podSelector": {"matchLabels": selector(inputs, role)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": egress,
        },
    }


def _of_agents(inputs: Inputs) -> list[Manifest]:
    """Return where agents may go: names, the gateways of this job's rollouts, and what is declared."""
    spec, gateway = inputs.job.spec, inputs.configs.rollouts[0].gateway
    assert spec.agents is not None, "suites.roles says who has them"
    assert gateway is not None, "a rule of the manifest: agents have a gateway"
    declared = [
        {"to": [{"ipBlock": _block(each.cidr)}], "ports": [_tcp(port) for port in each.ports]}
        for each in spec.agents.egress
    ]
    return [_dns(inputs.settings), {"to": _peers(inputs, [_R]), "ports": [_tcp(gateway.port)]}, *declared]


def _block(cidr: str) -> Manifest:
    """Return a block without its link-local networks, where nodes and clouds give credentials to who asks."""
    block = ipaddress.ip_network(cidr)
    local = [each for each in LINK_LOCAL if lies_in(ipaddress.ip_network(each), block)]
    return {"cidr": cidr, "except": local} if local else {"cidr": cidr}


def _ingress(inputs: Inputs, role: enums.Role) -> list[Manifest]:
    rules: list[Manifest] = [_called_by_peers(inputs, role)]
    if members := _broadcast(inputs, role):
        rules.append({"from": _peers(inputs, members), "ports": [dict(_CHOSEN_PORTS)]})
    settings, config = inputs.settings, first_config(inputs, role)
    # A kubelet's probes come from its node and need no rule. Without labels a selector matches every namespace.
    scrapers = {} if settings.metrics_from_everywhere else dict(settings.metrics_namespaces or SCRAPERS)
    scraped = [{"namespaceSelector": {"matchLabels": scrapers} if scrapers else {}}]
    rules.append({"from": scraped, "ports": [_tcp(config.health_port)]})
    if isinstance(config, process_config.RolloutConfig) and config.gateway is not None:
        theirs = {"podSelector": {"matchLabels": {AGENTS_LABEL: inputs.job.metadata.name}}}
        ours = _peers(inputs, [] if inputs.job.spec.agents is None else [_A])
        rules.append({"from": [theirs, *ours], "ports": [_tcp(config.gateway.port)]})
    if role is _C and settings.operator_namespace:
        operator = {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": settings.operator_namespace}},
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": MANAGED_BY}},
        }
        # The pod of `helm test`, which looks at metrics, may be in the job's own namespace.
        tester = {"podSelector": operator["podSelector"]}
        rules.append({"from": [operator, tester], "ports": [_tcp(config.health_port)]})
        rules.append({"from": [operator], "ports": [_tcp(inputs.configs.coordinator.control_port)]})
    return rules


def _called_by_peers(inputs: Inputs, role: enums.Role) -> Manifest:
    """Return the rule for peers: all ports among trainers, whose collectives choose theirs; else the gRPC ports."""
    rule: Manifest = {"from": _peers(inputs, CALLERS[role])}
    ports = [port for port in container.ports(first_config(inputs, role)) if port["name"] not in _PORTS_OF_OTHERS]
    return rule if role is _T or not ports else {**rule, "ports": [_tcp(port["containerPort"]) for port in ports]}


def _broadcast(inputs: Inputs, role: enums.Role) -> Sequence[enums.Role]:
    """Return the roles that `role` is in a group of broadcasts with."""
    return _BROADCAST.get(role, ()) if inputs.job.spec.trainer_broadcasts_weights else ()


def _dns(settings: JobSettings) -> Manifest:
    rule: Manifest = {"ports": [dict(port) for port in _DNS_PORTS]}
    return {"to": [dict(peer) for peer in settings.dns], **rule} if settings.dns else rule


def _everywhere(ports: Sequence[int]) -> Manifest:
    """Return the rule for URLs: their ports, at every address and pod. A policy knows no names."""
    blocks = [{"ipBlock": _block(cidr)} for cidr in _EVERYWHERE]
    return {"to": [{"namespaceSelector": {}}, *blocks], "ports": [_tcp(port) for port in sorted(set(ports))]}


def _outside(block: Egress) -> Manifest:
    address: Manifest = {"cidr": block.cidr}
    if block.excluded:
        address["except"] = list(block.excluded)
    return {"to": [{"ipBlock": address}], "ports": [_tcp(port) for port in block.ports]}


def _tcp(port: object) -> Manifest:
    return {"protocol": "TCP", "port": port}


def _peers(inputs: Inputs, roles: Sequence[enums.Role]) -> list[Manifest]:
    return [{"podSelector": {"matchLabels": selector(inputs, role)}} for role in roles]
