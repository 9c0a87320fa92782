"""The children of a running job in the order in which they are made: what guards and configures pods comes first."""

from collections.abc import Set

from rljob_api import names
from rljob_operator.resources import (
    autoscaler,
    configmap,
    coordinator,
    deployments,
    disruption,
    network_policies,
    pod_monitor,
    service_accounts,
    services,
    trainer,
)
from rljob_operator.resources.inputs import Inputs, Manifest, pod_of


def foundation(inputs: Inputs, *, served: Set[str] = frozenset()) -> list[Manifest]:
    """Return policies, accounts, config, Services and the PodMonitor. An account that the user names is not made.

    `served`: API groups that may be used.
    """
    policies = [network_policies.network_policy(inputs, role) for role in names.Role]
    own = [role for role in names.Role if pod_of(inputs, role).service_account_name is None]
    return [
        *(policies if inputs.job.spec.security.network_policy else []),
        *(service_accounts.service_account(inputs, role) for role in own),
        configmap.config_map(inputs),
        *(services.service(inputs, role) for role in names.Role),
        *([pod_monitor.pod_monitor(inputs)] if pod_monitor.is_wanted(inputs.job.spec, served) else []),
    ]


def workloads(inputs: Inputs, *, attempt: int, rollouts: int, served: Set[str] = frozenset()) -> list[Manifest]:
    """Return what makes pods, for a job that is active: all start at once and wait for each other."""
    scaler = autoscaler.autoscaler(inputs, served)
    return [
        coordinator.stateful_set(inputs, replicas=1),
        deployments.verifier(inputs, replicas=inputs.job.spec.verifier.replicas),
        deployments.rollout(inputs, replicas=rollouts),
        trainer.job(inputs, attempt=attempt),
        *disruption.budgets(inputs, running=True),
        *([] if scaler is None else [scaler]),
    ]
