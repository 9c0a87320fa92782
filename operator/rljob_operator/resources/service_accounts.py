"""A role's ServiceAccount: no rights, no token."""

from rljob_api import names
from rljob_operator.resources.inputs import Inputs, Manifest, child_name, labels, metadata


def service_account(inputs: Inputs, role: names.Role) -> Manifest:
    """Return the account that a role's pods run as unless the user names one."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(inputs, child_name(inputs, role), labels(inputs, role)),
        "automountServiceAccountToken": False,
    }
