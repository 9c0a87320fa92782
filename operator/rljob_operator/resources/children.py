"""The children of a running job in the order in which they are made: what guards and configures pods comes first."""

from collections.abc import Set

from rljob_api import suites
from rljob_operator.resources import agents, autoscaling, config, gangs, network, overlay, services, storage
from rljob_operator.resources import workloads as coordinator
from rljob_operator.resources import workloads as deployments
from rljob_operator.resources import workloads as disruption
from rljob_operator.resources import workloads as trainer
from rljob_operator.resources.inputs import Inputs, Manifest


def foundation(inputs: Inputs, *, served: Set[str] = frozenset()) -> list[Manifest]:
    """Return policies, accounts, config, Services, claims and the PodMonitor. An account that the
    runtime names is not made, nor is a claim that the user names; agents have a policy alone.

    `served`: API groups that may be used.
    """
    roles, programs = suites.roles(inputs.job.spec), suites.programs(inputs.job.spec)
    policies = [network.network_policy(inputs, role) for role in roles]
    created_accounts = [role for role in programs if not overlay.service_account(inputs.template(role))]
    return [
        *(policies if inputs.job.spec.security.network_policy else []),
        *(services.service_account(inputs, role) for role in created_accounts),
        config.config_map(inputs, trainer_template=trainer.trainer_template(inputs)),
        *(services.service(inputs, role) for role in programs),
        *storage.claims(inputs),
        *([services.pod_monitor(inputs)] if services.wants_pod_monitor(inputs.job.spec, served) else []),
    ]


def workloads(inputs: Inputs, *, attempt: int, rollouts: int, served: Set[str] = frozenset()) -> list[Manifest]:
    """Return what makes pods, for a job that is active: all start at once and wait for each other."""
    scaler, gang = autoscaling.autoscaler(inputs, served), gangs.pod_group(inputs, attempt=attempt)
    return [
        coordinator.coordinator_stateful_set(inputs, replicas=1),
        deployments.verifier_deployment(inputs, replicas=inputs.job.spec.verifier.replicas),
        *([deployments.judge_deployment(inputs)] if inputs.configs.judge else []),
        *_environments(inputs),
        deployments.rollout_deployment(inputs, replicas=rollouts),
        *([] if inputs.job.spec.agents is None else [agents.agents_deployment(inputs)]),
        *([] if gang is None else [gang]),
        trainer.trainer_job(inputs, attempt=attempt),
        *disruption.disruption_budgets(inputs, running=True),
        *([] if scaler is None else [scaler]),
    ]


def _environments(inputs: Inputs) -> list[Manifest]:
    spec = inputs.job.spec.environment
    return [] if spec is None else [deployments.environment_deployment(inputs, replicas=spec.replicas)]
