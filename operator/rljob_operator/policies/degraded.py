"""Why a running job is degraded: less of a role than it asked for, or what its coordinator says of the run. Pure."""

from collections.abc import Mapping

from rljob_api import names
from rljob_api.conditions import DEGRADED_BY_RUN, INFRA_FAILURE_SHARE_HIGH, LEDGER_LOST

_BELOW = ((names.Role.ROLLOUT, "RolloutsBelowTarget"), (names.Role.VERIFIER, "VerifiersBelowTarget"))
_MESSAGES = {
    INFRA_FAILURE_SHARE_HIGH: "of the answers of the last 15 minutes the infrastructure lost a larger share than"
    " failurePolicy.maxInfraFailureFraction, {fraction}",
    LEDGER_LOST: "the ledger was lost: the run went on from its newest checkpoint, and open groups began anew",
}


def reason(*, ready: Mapping[names.Role, int], wanted: Mapping[names.Role, int], said: str) -> str:
    """Return the reason, empty for a job that has what it asked for.

    ready, wanted: pods by role. said: the coordinator's own reason, of whatever it is.
    """
    for role, below in _BELOW:
        if ready[role] < wanted[role]:
            return below
    return said if said in DEGRADED_BY_RUN else ""


def message(reason_: str, *, fraction: str) -> str:
    """Return a sentence for a reason that the coordinator gave, empty for others: pods' conditions tell of these."""
    return _MESSAGES.get(reason_, "").format(fraction=fraction)
