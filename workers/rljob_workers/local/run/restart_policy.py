"""What the local runner does when a process ended: start it again after a delay, or end the run. Pure.

Classes, rules, budgets and backoff are those of `rljob_api.lifecycle`. What differs from a cluster: the budgets are per
process and begin again with each checkpoint, and the first delay is a second.
"""

import dataclasses

from rljob_api import enums, lifecycle
from rljob_api.lifecycle import Failure, FailureClass
from rljob_api.manifest.lifecycle import FailureRuleSpec

_NEVER_AGAIN = {
    int(enums.ExitCode.BAD_INPUT): "ConfigurationError",
    int(enums.ExitCode.CONFIGURATION): "ConfigurationError",
    int(enums.ExitCode.ISOLATION_REFUSED): "IsolationUnverified",
}
# A process other than the trainer that ran this long has shown that it works: its backoff starts again.
_HEALTHY_AFTER_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """One process that ended. Steps count completed optimizer publishes of the run since it was started; checkpoints
    are those that were committed since the role ended the time before, no matter who ran.
    """

    role: enums.Role
    code: int
    ran_s: float
    steps_gained: int = 0
    checkpoints_gained: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Budgets per process, renewed with each checkpoint: a run that makes progress outlives any number of failures.

    `first_delay_s` doubles with each ending in a row up to `most_delay_s`.
    """

    max_app_restarts: int = 10
    max_infra_restarts: int = 100
    first_delay_s: float = 1.0
    most_delay_s: float = 300.0
    rules: tuple[FailureRuleSpec, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What already happened to one process since the run's last checkpoint."""

    application: int = 0
    infrastructure: int = 0
    in_a_row: int = 0
    fruitless: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Restart:
    """Start it again after `delay_s`; `history` is what to decide the next ending with."""

    delay_s: float
    failure: FailureClass
    history: History


@dataclasses.dataclass(frozen=True, slots=True)
class Done:
    """The process has done its work (`finished`), or stopped after a checkpoint because it was asked to."""

    finished: bool


Decision = Restart | Failure | Done


def decide(ending: Ending, history: History, policy: Policy, *, run_finished: bool) -> Decision:
    """Return what follows from `ending`. `run_finished`: all work is done, so leaving is right."""
    if ending.code == 0 and (run_finished or ending.role is enums.Role.TRAINER):
        return Done(finished=True)
    if ending.code == enums.ExitCode.STOPPED_ON_REQUEST and ending.role is enums.Role.TRAINER:
        return Done(finished=False)
    rule = lifecycle.matching_rule(_exit(ending), policy.rules)
    ended = f"{ending.role} ended with {lifecycle.describe_exit(ending.code)}"
    if rule is not None and rule.action == "FailJob":
        return Failure("FailJobRule", f"{ended}, which a rule says fails the job")
    if ending.role is enums.Role.AGENTS:
        return _again_for_ever(ending, _since(ending, history), policy)
    if ending.code in _NEVER_AGAIN:
        return Failure(_NEVER_AGAIN[ending.code], f"{ended}, which a restart cannot fix")
    return _again(ending, _since(ending, history), policy, counted=rule is None or rule.action != "Ignore")


def _since(ending: Ending, history: History) -> History:
    """Return the history with what the ended process achieved taken into account."""
    worked = ending.checkpoints_gained > 0 or (
        ending.role is not enums.Role.TRAINER and ending.ran_s >= _HEALTHY_AFTER_S
    )
    if ending.checkpoints_gained > 0:
        history = dataclasses.replace(history, application=0, infrastructure=0)
    return dataclasses.replace(
        history,
        in_a_row=1 if worked else history.in_a_row + 1,
        fruitless=0 if ending.role is not enums.Role.TRAINER or ending.steps_gained > 0 else history.fruitless + 1,
    )


def _again(ending: Ending, history: History, policy: Policy, *, counted: bool) -> Restart | Failure:
    delay_s = lifecycle.backoff_s(history.in_a_row, first_s=policy.first_delay_s, max_s=policy.most_delay_s)
    if not counted:
        return Restart(delay_s, FailureClass.REQUESTED, history)
    failure = classify(ending, fruitless=history.fruitless)
    is_application = failure is FailureClass.APPLICATION
    after = dataclasses.replace(
        history,
        application=history.application + is_application,
        infrastructure=history.infrastructure + (not is_application),
    )
    reason = lifecycle.exceeded_budget(
        application=after.application if is_application else 0,
        infrastructure=0 if is_application else after.infrastructure,
        max_trainer_restarts=policy.max_app_restarts,
        max_infra_restarts=policy.max_infra_restarts,
    )
    if reason is None:
        return Restart(delay_s, failure, after)
    return _exhausted(ending, failure, reason, policy)


def _again_for_ever(ending: Ending, history: History, policy: Policy) -> Restart:
    """Return the restart of the user's own program: its codes mean nothing to us, and one that ends well, having done a
    task, has no failures behind it.
    """
    if ending.code == enums.ExitCode.OK:
        history = dataclasses.replace(history, in_a_row=1)
    delay_s = lifecycle.backoff_s(history.in_a_row, first_s=policy.first_delay_s, max_s=policy.most_delay_s)
    return Restart(delay_s, classify(ending), history)


def _exhausted(ending: Ending, failure: FailureClass, reason: str, policy: Policy) -> Failure:
    is_application = failure is FailureClass.APPLICATION
    field = "maxTrainerRestarts" if is_application else "maxInfraRestarts"
    allowed = policy.max_app_restarts if is_application else policy.max_infra_restarts
    return Failure(
        reason,
        f"{ending.role} ended with {lifecycle.describe_exit(ending.code)} ({failure} failure) and all of "
        f"spec.failurePolicy.{field} = {allowed} restarts since the last checkpoint are used",
    )


def classify(ending: Ending, *, fruitless: int = 0) -> FailureClass:
    """Return the class of an ending. `fruitless`: endings of the trainer in a row without a new step."""
    if ending.code == enums.ExitCode.OK:
        return FailureClass.INFRASTRUCTURE  # It left a run that still needed it.
    return lifecycle.classify(_exit(ending), attempts_without_step=fruitless)


def _exit(ending: Ending) -> lifecycle.Exit:
    return lifecycle.Exit(role=ending.role, exit_code=ending.code)
