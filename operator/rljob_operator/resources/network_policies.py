"""Who may talk to whom: one NetworkPolicy a role, the table of section 14 of the operator's reference.

Peers are selected by the job's uid. Egress to hubs and metrics ingress need operator settings and are not made here.
"""

from collections.abc import Mapping, Sequence

from rljob_api import names
from rljob_operator.resources.inputs import Inputs, Manifest, child_name, labels, metadata, selector

_C, _R, _V, _T = names.Role.COORDINATOR, names.Role.ROLLOUT, names.Role.VERIFIER, names.Role.TRAINER
CALLERS: Mapping[names.Role, Sequence[names.Role]] = {_C: (_R, _T), _R: (_R,), _T: (_T,), _V: (_R,)}
CALLED: Mapping[names.Role, Sequence[names.Role]] = {_C: (), _R: (_C, _V, _R), _T: (_C, _T), _V: ()}
# By port and not by pod label: node-local caches match no label of a DNS pod.
_DNS: Manifest = {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]}


def network_policy(inputs: Inputs, role: names.Role) -> Manifest:
    """Return a role's policy: both directions are closed but for its peers; only the verifier goes without DNS."""
    egress: list[Manifest] = [] if role is _V else [dict(_DNS)]
    if CALLED[role]:
        egress.append({"to": _peers(inputs, CALLED[role])})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(inputs, child_name(inputs, role), labels(inputs, role)),
        "spec": {
            "podSelector": {"matchLabels": selector(inputs, role)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": _peers(inputs, CALLERS[role])}],
            "egress": egress,
        },
    }


def _peers(inputs: Inputs, roles: Sequence[names.Role]) -> list[Manifest]:
    return [{"podSelector": {"matchLabels": selector(inputs, role)}} for role in roles]
