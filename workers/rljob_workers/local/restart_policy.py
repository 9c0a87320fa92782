"""What to do when a process of a run ended: go on, start it again after a delay, or end the run. Pure.

Exit codes and classes: operator reference 9.5-9.8. A code below 0 is the signal that ended the process. Killed by a
signal that another process sends (KILL, TERM, INT, HUP) is infrastructure, as a deleted pod is in a cluster; a signal
that the program raised itself (SEGV, ABRT, BUS, ...) is the application's own fault.
"""

import dataclasses
import enum
import signal
from typing import Literal

from rljob_api import names

_SENT_BY_OTHERS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_NEVER_AGAIN = {
    int(names.ExitCode.BAD_INPUT): "ConfigurationError",
    int(names.ExitCode.CONFIGURATION): "ConfigurationError",
    int(names.ExitCode.ISOLATION_REFUSED): "IsolationUnverified",
}
# After this many endings of the trainer without a new step, the cause is taken to be the job itself (9.8).
_FRUITLESS_ATTEMPTS = 3
# A process other than the trainer that ran this long has shown that it works: its backoff starts again.
_HEALTHY_AFTER_S = 60.0


class FailureClass(enum.StrEnum):
    """Whose fault an ending was."""

    APPLICATION = "application"
    INFRASTRUCTURE = "infrastructure"
    REQUESTED = "requested"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """One process that ended. Steps count completed optimizer publishes of the run since it was started; checkpoints
    are those that were committed since the role ended the time before, whoever ran.
    """

    role: names.Role
    code: int
    ran_s: float
    steps_gained: int = 0
    checkpoints_gained: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One entry of failurePolicy.rules: codes listed match if `matches_listed`, else codes that are not listed."""

    action: Literal["Restart", "Ignore", "FailJob"]
    role: names.Role | None = None
    codes: tuple[int, ...] = ()
    matches_listed: bool = True

    def matches(self, ending: Ending) -> bool:
        """Return whether the rule is about this ending."""
        if self.role not in (None, ending.role):
            return False
        return not self.codes or (ending.code in self.codes) is self.matches_listed


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Budgets per process, which begin anew with each checkpoint: a run that gets on outlives any number of failures.

    `first_delay_s` doubles with each ending in a row up to `most_delay_s`.
    """

    max_app_restarts: int = 10
    max_infra_restarts: int = 100
    first_delay_s: float = 1.0
    most_delay_s: float = 300.0
    rules: tuple[Rule, ...] = ()


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
class Fail:
    """End the run as failed. `reason` is a word of the conditions table, `because` a sentence."""

    reason: str
    because: str


@dataclasses.dataclass(frozen=True, slots=True)
class Done:
    """The process has done its work (`finished`), or stopped after a checkpoint because it was asked to."""

    finished: bool


Decision = Restart | Fail | Done


def decide(ending: Ending, history: History, policy: Policy, *, run_finished: bool) -> Decision:
    """Return what follows from `ending`. `run_finished`: all work is done, so leaving is right."""
    if ending.code == 0 and (run_finished or ending.role is names.Role.TRAINER):
        return Done(finished=True)
    if ending.code == names.ExitCode.STOPPED_ON_REQUEST and ending.role is names.Role.TRAINER:
        return Done(finished=False)
    rule = next((rule for rule in policy.rules if rule.matches(ending)), None)
    if rule is not None and rule.action == "FailJob":
        return Fail("FailJobRule", f"{ending.role} ended with {describe(ending.code)}, which a rule says fails the job")
    if ending.code in _NEVER_AGAIN:
        return Fail(
            _NEVER_AGAIN[ending.code], f"{ending.role} ended with {describe(ending.code)}, which no restart can mend"
        )
    return _again(ending, _since(ending, history), policy, counted=rule is None or rule.action != "Ignore")


def _since(ending: Ending, history: History) -> History:
    """Return the history with what the ended process achieved taken into account."""
    worked = ending.checkpoints_gained > 0 or (
        ending.role is not names.Role.TRAINER and ending.ran_s >= _HEALTHY_AFTER_S
    )
    if ending.checkpoints_gained > 0:
        history = dataclasses.replace(history, application=0, infrastructure=0)
    return dataclasses.replace(
        history,
        in_a_row=1 if worked else history.in_a_row + 1,
        fruitless=0 if ending.role is not names.Role.TRAINER or ending.steps_gained > 0 else history.fruitless + 1,
    )


def _again(ending: Ending, history: History, policy: Policy, *, counted: bool) -> Restart | Fail:
    delay_s = min(policy.most_delay_s, policy.first_delay_s * 2 ** min(history.in_a_row - 1, 30))
    if not counted:
        return Restart(delay_s, FailureClass.REQUESTED, history)
    failure = classify(ending.code)
    if history.fruitless >= _FRUITLESS_ATTEMPTS:
        failure = FailureClass.APPLICATION
    used = history.application if failure is FailureClass.APPLICATION else history.infrastructure
    allowed = policy.max_app_restarts if failure is FailureClass.APPLICATION else policy.max_infra_restarts
    if used >= allowed:
        return _exhausted(ending, failure, allowed)
    if failure is FailureClass.APPLICATION:
        return Restart(delay_s, failure, dataclasses.replace(history, application=used + 1))
    return Restart(delay_s, failure, dataclasses.replace(history, infrastructure=used + 1))


def _exhausted(ending: Ending, failure: FailureClass, allowed: int) -> Fail:
    field = "maxTrainerRestarts" if failure is FailureClass.APPLICATION else "maxInfraRestarts"
    reason = "RestartLimitExceeded" if failure is FailureClass.APPLICATION else "InfraLimitExceeded"
    return Fail(
        reason,
        f"{ending.role} ended with {describe(ending.code)} ({failure} failure) and all of "
        f"spec.failurePolicy.{field} = {allowed} restarts since the last checkpoint are used",
    )


def classify(code: int) -> FailureClass:
    """Return whose fault an exit code (negative: signal) is, by itself."""
    if code == names.ExitCode.STOPPED_ON_REQUEST:
        return FailureClass.REQUESTED
    infra = code in (0, int(names.ExitCode.INFRASTRUCTURE)) or -code in _SENT_BY_OTHERS
    return FailureClass.INFRASTRUCTURE if infra else FailureClass.APPLICATION


def describe(code: int) -> str:
    """Return an exit code in words: `exit code 1`, `signal SIGKILL`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
