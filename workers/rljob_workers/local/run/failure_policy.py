"""spec.failurePolicy and the deadlines as the local runner carries them out. Pure."""

from rljob_api import lifecycle
from rljob_api.manifest.job import JobSpec
from rljob_api.manifest.lifecycle import FailureRuleSpec
from rljob_workers.local.run import deadlines, restart_policy, shutdown

# In a cluster the drain may take as long as the manifest says; a person at a terminal waits at most this long.
_MOST_DRAIN_S = 15.0


def restart_policy_of(spec: JobSpec) -> restart_policy.Policy:
    """Return budgets and rules. Rules about pod conditions or container reasons cannot match without a cluster."""
    policy = spec.failure_policy
    return restart_policy.Policy(
        max_app_restarts=policy.max_trainer_restarts,
        max_infra_restarts=policy.max_infra_restarts,
        rules=tuple(rule for rule in policy.rules if not (rule.pod_conditions or rule.container_reasons)),
    )


def rule_lines(spec: JobSpec) -> list[str]:
    """Return the rules in words, the manifest's own first, then those that always hold."""
    policy = restart_policy_of(spec)
    return [_rule_line(rule) for rule in policy.rules] + [
        "trainer, exit code 0: the run is finished; 80: stopped on request, counts nowhere",
        "exit codes 2, 78 (configuration) and 79 (isolation): the run fails",
        f"exit code 75, or signal KILL, TERM, INT, HUP: infrastructure, {policy.max_infra_restarts} restarts at most",
        f"anything else, or {lifecycle.MAX_ATTEMPTS_WITHOUT_STEP} trainer attempts without a step: application, "
        f"{policy.max_app_restarts} restarts at most",
        "on one machine restarts are those of a process, and count from the run's last checkpoint",
    ]


def _rule_line(rule: FailureRuleSpec) -> str:
    codes = "any exit" if rule.exit_codes is None else f"exit codes {', '.join(map(str, rule.exit_codes.values))}"
    is_exception = rule.exit_codes is not None and rule.exit_codes.operator == "NotIn"
    return f"{rule.role or 'any role'}, {f'all but {codes}' if is_exception else codes}: {rule.action}"


def limits_of(spec: JobSpec) -> deadlines.Limits:
    """Return the deadlines of a run segment."""
    stall = spec.failure_policy.stall
    return deadlines.Limits(
        startup_s=float(spec.startup_deadline_seconds),
        active_s=None if spec.active_deadline_seconds is None else float(spec.active_deadline_seconds),
        stall_s=float(stall.timeout_seconds),
        on_stall=stall.action,
    )


def bounds_of(spec: JobSpec) -> shutdown.Bounds:
    """Return how long the roles get to end."""
    return shutdown.Bounds(drain_s=min(_MOST_DRAIN_S, float(spec.rollout.drain_seconds)))
