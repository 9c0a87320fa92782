"""The children of a running job in the order in which they are made: what guards and configures pods comes first."""

from rljob_api import names
from rljob_operator.resources import (
    configmap,
    coordinator,
    deployments,
    disruption,
    network_policies,
    service_accounts,
    services,
    trainer,
)
from rljob_operator.resources.inputs import Inputs, Manifest, pod_of


def foundation(inputs: Inputs) -> list[Manifest]:
    """Return policies, accounts, config and Services. An account that the user names is not made."""
    policies = [network_policies.network_policy(inputs, role) for role in names.Role]
    own = [role for role in names.Role if pod_of(inputs, role).service_account_name is None]
    return [
        *(policies if inputs.job.spec.security.network_policy else []),
        *(service_accounts.service_account(inputs, role) for role in own),
        configmap.config_map(inputs),
        *(services.service(inputs, role) for role in names.Role),
    ]


def workloads(inputs: Inputs, *, attempt: int, rollouts: int) -> list[Manifest]:
    """Return what makes pods, for a job that is active: all start at once and wait for each other."""
    return [
        coordinator.stateful_set(inputs, replicas=1),
        deployments.verifier(inputs, replicas=inputs.job.spec.verifier.replicas),
        deployments.rollout(inputs, replicas=rollouts),
        trainer.job(inputs, attempt=attempt),
        *disruption.budgets(inputs, running=True),
    ]
