"""Who may call what: a role's certificate opens its own calls and no others. Deny by default. Pure.

Health and metrics are plain HTTP on another port and not subject to this.
"""

from collections.abc import Mapping

from rljob_api import enums
from rljob_api.enums import OPERATOR, Role

_DATA = frozenset({str(Role.ROLLOUT), str(Role.TRAINER)})
_ROLLOUT, _TRAINER, _OPERATOR = frozenset({str(Role.ROLLOUT)}), frozenset({str(Role.TRAINER)}), frozenset({OPERATOR})
_SERVICES: Mapping[str, Mapping[str, frozenset[str]]] = {
    "Work": {
        "Register": _DATA,
        "Heartbeat": _DATA,
        "LeaseGroups": _ROLLOUT,
        "SubmitGroup": _ROLLOUT,
        "ReleaseGroup": _ROLLOUT,
        "Watch": _ROLLOUT,
    },
    "Train": {"FetchBatch": _TRAINER, "CommitStep": _TRAINER, "CommitCheckpoint": _TRAINER},
    "Weights": {"Publish": _TRAINER, "Manifest": _ROLLOUT, "Pieces": _ROLLOUT},
    "WeightStore": {"Upload": _TRAINER, "Pull": _ROLLOUT},
    "Broadcasts": {"Follow": _ROLLOUT, "Report": _ROLLOUT},
    "Verifier": {"Verify": _ROLLOUT},
    "Environment": dict.fromkeys(("Claim", "Exec", "Read", "Write", "Reset", "Release"), _ROLLOUT),
    "RunStatus": {"Status": _OPERATOR, "WatchStatus": _OPERATOR, "Stop": _OPERATOR},
}
# By full method name, as gRPC has it.
CALLERS: Mapping[str, frozenset[str]] = {
    f"/rljob.v1.{service}/{method}": callers
    for service, methods in _SERVICES.items()
    for method, callers in methods.items()
}


def refusal(method: str, identities: tuple[str, ...], *, trust_domain: str, namespace: str, job: str) -> str | None:
    """Return why a call is refused, None if it is not. `identities`: the URIs of the peer's certificate."""
    if len(identities) != 1:
        return f"{method} needs a certificate with one identity, this one has {len(identities)}"
    allowed = CALLERS.get(method, frozenset())
    if identities[0] in {enums.identity(trust_domain, namespace, job, caller) for caller in allowed}:
        return None
    return f"{identities[0]} may not call {method}"
