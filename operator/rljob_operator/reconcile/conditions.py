"""From what is observed to the conditions of a status: every type, in one order, times kept where nothing moved."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rljob_api import enums, types
from rljob_api.conditions import (
    DEGRADED_BY_RUN,
    INFRA_FAILURE_SHARE_HIGH,
    LEARNING_DIVERGED,
    LEDGER_LOST,
    UPLOADS_FAILING,
)
from rljob_api.conditions import ConditionType as Type
from rljob_api.manifest.job import OUR_OPERATOR, JobSpec
from rljob_api.manifest.status import Condition, JobStatus
from rljob_api.validation import crd
from rljob_operator import clock
from rljob_operator.model import Observed, Refusal
from rljob_operator.policies import attempts, failure, isolation, refusals, scheduling
from rljob_operator.reconcile import status as reporting
from rljob_operator.resources import autoscaling

_BELOW = (
    (enums.Role.ROLLOUT, "RolloutsBelowTarget"),
    (enums.Role.VERIFIER, "VerifiersBelowTarget"),
    (enums.Role.AGENTS, "AgentsBelowTarget"),
    (enums.Role.ENVIRONMENT, "EnvironmentsBelowTarget"),
)
_MESSAGES = {
    INFRA_FAILURE_SHARE_HIGH: "of the answers of the last 15 minutes the infrastructure lost a larger share than"
    " failurePolicy.maxInfraFailureFraction, {fraction}",
    LEARNING_DIVERGED: "the run loses what it has learned",
    LEDGER_LOST: "the ledger was lost: the run resumed from its newest checkpoint, and open groups were restarted",
}


def degraded_reason(*, ready: Mapping[enums.Role, int], desired: Mapping[enums.Role, int], run_reason: str) -> str:
    """Return the reason, empty for a job that has what it asked for.

    ready, desired: pods by role; a role that a job has not is in neither. run_reason: the coordinator's own reason, of
    whatever it is.
    """
    for role, below in _BELOW:
        if ready.get(role, 0) < desired.get(role, 0):
            return below
    return run_reason if run_reason in DEGRADED_BY_RUN else ""


def degraded_message(reason_: str, *, fraction: str, concerns: Sequence[types.Concern] = ()) -> str:
    """Return a sentence for a reason that the coordinator gave, empty for others: pods' conditions report on these.

    concerns: what the coordinator says of how the run learns, with sentences of its own.
    """
    sentence = next((concern.message for concern in concerns if concern.reason == reason_), "")
    return shorten(sentence) if sentence else _MESSAGES.get(reason_, "").format(fraction=fraction)


_MOST_MESSAGE = 1024
_KNOWN: Mapping[str, Type] = {str(kind): kind for kind in Type}
_READY_TYPES = {
    enums.Role.COORDINATOR: Type.COORDINATOR_READY,
    enums.Role.TRAINER: Type.TRAINER_READY,
    enums.Role.ROLLOUT: Type.ROLLOUT_READY,
    enums.Role.VERIFIER: Type.VERIFIER_READY,
}


@dataclasses.dataclass(frozen=True, slots=True)
class State:
    """Status ("True", "False", "Unknown"), reason, and a sentence."""

    status: str
    reason: str
    message: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """Where the plan says the run is. Reasons are empty where the condition does not hold.

    rejected: reason and sentences of a spec that is not accepted. not_admitted: why a spec whose run continues could
    not begin any more. refused: children that the API server does not take. resumed: the job was suspended before.
    """

    suspending: str = ""
    suspended: str = ""
    resumed: bool = False
    complete: str = ""
    failed: str = ""
    failed_message: str = ""
    rejected: str = ""
    rejected_message: str = ""
    not_admitted: str = ""
    refused: tuple[Refusal, ...] = ()
    backing_off: bool = False
    stalled: str = ""
    stalled_message: str = ""

    @property
    def is_over(self) -> bool:
        return bool(self.complete or self.failed)


def statuses(conditions_: Sequence[Condition]) -> dict[Type, str]:
    """Return status by type; types that we do not know are left out."""
    return {_KNOWN[each.type]: each.status for each in conditions_ if each.type in _KNOWN}


def reasons(current: Sequence[Condition]) -> dict[Type, str]:
    """Return reason by type; types that we do not know are left out."""
    return {_KNOWN[each.type]: each.reason for each in current if each.type in _KNOWN}


def conditions(observed: Observed, outcome: RunOutcome, *, now: float) -> tuple[Condition, ...]:
    """Return the conditions that follow, in the order of the reference; foreign types are not carried over."""
    states = _states(observed, outcome, now)
    before = {condition.type: condition for condition in observed.status.conditions}
    generation = observed.job.metadata.generation
    return tuple(
        _condition(kind, states[kind], before.get(kind), generation=generation, now=now)
        for kind in Type
        if kind in states
    )


def _condition(kind: Type, state: State, before: Condition | None, *, generation: int, now: float) -> Condition:
    message = shorten(state.message)
    if before is not None and _says(before) == (state.status, state.reason, message, generation):
        return before
    # The schema's default bears no time: it was written by no one.
    unchanged = before is not None and before.status == state.status and before.last_transition_time != crd.EPOCH
    since = before.last_transition_time if before is not None and unchanged else clock.to_timestamp(now)
    return Condition.model_validate(
        {
            "type": str(kind),
            "status": state.status,
            "reason": state.reason,
            "message": message,
            "observedGeneration": generation,
            "lastTransitionTime": since,
        }
    )


def _says(condition: Condition) -> tuple[str, str, str, int | None]:
    return condition.status, condition.reason, condition.message, condition.observed_generation


def shorten(text: str, most: int = _MOST_MESSAGE) -> str:
    """Return at most `most` characters, with a mark where something was cut off."""
    return text if len(text) <= most else text[: most - 2] + " …"


def _states(observed: Observed, outcome: RunOutcome, now: float) -> dict[Type, State]:
    ready = {_READY_TYPES[role]: _ready(observed, outcome, role) for role in _READY_TYPES}
    outcome = _held_up(observed, outcome, ready)
    accepted = _accepted(outcome, observed.job.spec)
    running = _running(outcome, accepted, ready, restarted=_is_restarted(observed.status))
    below = _degraded(observed) if running.status == "True" else State("False", "AtTarget")
    stalled = _stalled(outcome)
    return {
        Type.ACCEPTED: accepted,
        Type.CHILDREN_APPLIED: _applied(outcome),
        **_quota(observed),
        Type.SUSPENDING: State("True", outcome.suspending) if outcome.suspending else State("False", "NotSuspending"),
        Type.SUSPENDED: _suspended(observed, outcome),
        Type.STATE_DURABLE: durable(observed.job.spec, observed.hears),
        Type.PODS_SCHEDULED: _scheduled(observed, outcome, now),
        **_isolated(observed),
        **ready,
        Type.RUNNING: running,
        Type.DEGRADED: below,
        **_autoscaling(observed, outcome),
        Type.RECONCILING: _reconciling(outcome, running, stalled),
        Type.STALLED: stalled,
        Type.COMPLETE: State("True", outcome.complete) if outcome.complete else State("False", "NotFinished"),
        Type.FAILED: State("True", outcome.failed, outcome.failed_message)
        if outcome.failed
        else State("False", "NotFailed"),
    }


def _held_up(observed: Observed, outcome: RunOutcome, ready: Mapping[Type, State]) -> RunOutcome:
    """Return the course of a job that cannot run because of what was refused; one that runs is not contradicted."""
    if outcome.rejected or all(state.status == "True" for state in ready.values()):
        return outcome
    missing = refusals.keeps_from_running(outcome.refused, observed.children)
    if missing is None:
        return outcome
    return dataclasses.replace(outcome, rejected=missing.reason, rejected_message=refusals.sentence([missing]))


def _applied(outcome: RunOutcome) -> State:
    if outcome.not_admitted and not outcome.is_over:
        goes_on = "the run continues with its accepted spec, and could not be restarted"
        return State("False", "InvalidSpec", f"{goes_on}: {outcome.not_admitted}")
    if outcome.refused:
        return State("False", outcome.refused[0].reason, refusals.sentence(outcome.refused))
    return State("True", "Applied")


def _accepted(outcome: RunOutcome, spec: JobSpec) -> State:
    # An end is history: a spec that was broken afterwards does not contradict it.
    if outcome.rejected and not outcome.is_over:
        return State("False", outcome.rejected, outcome.rejected_message)
    plain = 'connections between roles are not encrypted: spec.security.tls is "Disabled"'
    return State("True", "Accepted", plain if spec.security.tls == "Disabled" else "")


def _quota(observed: Observed) -> dict[Type, State]:
    """Return what the job's queue says; a job without one has no such condition."""
    quota = observed.quota
    if quota is None:
        return {}
    return {Type.QUOTA_RESERVED: State(str(quota.admitted), quota.reason, quota.message)}


def _suspended(observed: Observed, outcome: RunOutcome) -> State:
    if outcome.suspended and not outcome.is_over:
        by_queue = observed.quota is not None and not observed.quota.suspended_by_user
        return State("True", outcome.suspended, observed.quota.message if observed.quota and by_queue else "")
    return State("False", "Resumed" if outcome.resumed else "NotSuspended")


def durable(spec: JobSpec, run: types.RunStatus | None) -> State:
    """Return whether state outlives its pods; `run`: what the coordinator says while it answers."""
    if run is not None and run.storage_problem:
        return State("False", UPLOADS_FAILING, shorten(run.storage_problem))
    if spec.storage.type == "Persistent":
        return State("True", "PersistentVolume" if spec.storage.checkpoint_uri is None else "ExternalStore")
    return State("False", "EmptyDir", "ledger, checkpoints and export are lost with their pods: storage is Ephemeral")


def _scheduled(observed: Observed, outcome: RunOutcome, now: float) -> State:
    """Return whether every pod that is wanted is there and has a node; one that is made again is not missed at once."""
    if outcome.is_over:
        return State("False", "Finished")
    if outcome.suspended or outcome.suspending:
        return State("False", "Suspended")
    obstacle = scheduling.obstacle(observed, drain_s=observed.job.spec.rollout.drain_seconds, now=now)
    if obstacle is not None:
        return State("False", obstacle.reason, obstacle.message)
    was_whole = statuses(observed.status.conditions).get(Type.PODS_SCHEDULED) == "True"
    is_whole = scheduling.placed_at(observed.job.spec, observed.pods, attempt=observed.status.attempt) is not None
    if is_whole or (was_whole and any(pod.has_node for pod in observed.pods)):
        return State("True", "Scheduled")
    return State("False", "Pending", "pods are being created and scheduled")


def isolation_verdict(observed: Observed) -> isolation.Verdict | None:
    """Return what the verifiers' reports come to; None where no isolation is asked for or no pod could report."""
    requested = observed.job.spec.verifier.isolation
    pods = [pod for pod in observed.pods_of(enums.Role.VERIFIER) if not pod.deleting]
    if requested.type == "None" or not pods:
        return None
    return isolation.judge(
        {pod.name: pod.preflight for pod in pods},
        runtime_class=requested.runtime_class,
        classes={pod.name: pod.runtime_class for pod in pods},
    )


def _isolated(observed: Observed) -> dict[Type, State]:
    """Return the verdict; without a pod the last one remains, and a job that asks for none has no such condition."""
    if observed.job.spec.verifier.isolation.type == "None":
        return {}
    verdict = isolation_verdict(observed)
    if verdict is not None:
        return {Type.ISOLATION_VERIFIED: State(verdict.status, verdict.reason, verdict.message)}
    last = next(
        (condition for condition in observed.status.conditions if condition.type == Type.ISOLATION_VERIFIED), None
    )
    if last is None:
        return {Type.ISOLATION_VERIFIED: State("Unknown", "ProbePending")}
    return {Type.ISOLATION_VERIFIED: State(last.status, last.reason, last.message)}


def _ready(observed: Observed, outcome: RunOutcome, role: enums.Role) -> State:
    attempt = observed.status.attempt if role is enums.Role.TRAINER else None
    pods = [pod for pod in observed.pods_of(role, attempt) if not pod.deleting]
    # A trainer that has done its work starts nothing: the run ends with its Job, moments later.
    num_ready = sum(pod.ready or (role is enums.Role.TRAINER and pod.phase == "Succeeded") for pod in pods)
    crashing = next((pod for pod in pods if pod.waiting_reason == failure.CRASH_LOOP), None)
    if role is enums.Role.VERIFIER and not outcome.is_over and (unready := _unready_beside(observed)):
        return unready
    if num_ready >= _needed(observed.job.spec, role) and not outcome.is_over:
        return _answering(observed) if role is enums.Role.COORDINATOR else State("True", "Ready")
    verdict = isolation_verdict(observed) if role is enums.Role.VERIFIER else None
    if verdict is not None and verdict.status == "False":
        return State("False", "IsolationUnverified", verdict.message)
    if crashing is not None:
        return State("False", "CrashLoop", crashing.name)
    if role is enums.Role.TRAINER and _is_restarted(observed.status):
        return State("False", "BackingOff" if outcome.backing_off else "Restarting")
    if role is enums.Role.TRAINER and outcome.backing_off:
        return State("False", "BackingOff")
    below = role in (enums.Role.ROLLOUT, enums.Role.VERIFIER) and num_ready > 0
    return State("False", "BelowMinimum" if below else "Starting")


_UNREADY = {
    enums.Role.JUDGE: "the judge is not ready: it waits for the first answer of its language model",
    enums.Role.ENVIRONMENT: "no environment is ready: the first ones make their places and try their confinement",
}


def _unready_beside(observed: Observed) -> State | None:
    """Return the state of a job whose judge or environment no rollout can ask yet: who grades and runs what the policy
    wrote is ready when all of them are.
    """
    for role, message in _UNREADY.items():
        pods = [pod for pod in observed.pods_of(role) if not pod.deleting]
        if scheduling.wanted_pods(observed.job.spec, role) == 0 or any(pod.ready for pod in pods):
            continue
        looping = next((pod for pod in pods if pod.waiting_reason == failure.CRASH_LOOP), None)
        return State("False", "Starting", message) if looping is None else State("False", "CrashLoop", looping.name)
    return None


def _is_restarted(status: JobStatus) -> bool:
    """Return whether an attempt before this one ended without being asked to: the first after a resume starts."""
    return (status.attempt or 0) > attempts.first_of_segment(status)


def _needed(spec: JobSpec, role: enums.Role) -> int:
    """Return how many ready pods make a role ready: one rollout or verifier can do a step's work, slowly."""
    return 1 if role in (enums.Role.ROLLOUT, enums.Role.VERIFIER) else scheduling.wanted_pods(spec, role)


def _answering(observed: Observed) -> State:
    """Return whether the coordinator answers; before this process has its first word, the last verdict remains."""
    if observed.silent_since is not None:
        since = clock.to_timestamp(observed.silent_since)
        return State("False", "Unreachable", f"the coordinator's pod is ready but has not answered since {since}")
    if observed.report is not None:
        return State("True", "Ready")
    condition = next((each for each in observed.status.conditions if each.type == Type.COORDINATOR_READY), None)
    was_ready = condition is not None and condition.status == "True"
    return State("True", "Ready") if was_ready else State("False", "Starting", "the coordinator has not answered yet")


def _running(outcome: RunOutcome, accepted: State, ready: Mapping[Type, State], *, restarted: bool) -> State:
    if outcome.is_over:
        return State("False", "Finished")
    if outcome.suspended or outcome.suspending:
        return State("False", "Suspended")
    if accepted.status == "False":
        return State("False", "NotReady", "the spec is not accepted")
    waiting = [f"{kind}: {state.reason}" for kind, state in ready.items() if state.status != "True"]
    if not waiting:
        return State("True", "Running")
    if ready[Type.TRAINER_READY].reason in ("Restarting", "BackingOff"):
        return State("False", "Restarting", "; ".join(waiting))
    return State("False", "NotReady" if restarted else "Starting", "; ".join(waiting))


def _degraded(observed: Observed) -> State:
    spec, roles = observed.job.spec, [role for role, _ in _BELOW]
    reason = degraded_reason(
        ready={role: sum(pod.ready for pod in observed.pods_of(role)) for role in roles},
        desired={role: scheduling.wanted_pods(spec, role) for role in roles},
        run_reason=observed.report.run.reason if observed.report is not None else "",
    )
    if not reason:
        return State("False", "AtTarget")
    fraction = str(spec.failure_policy.max_infra_failure_fraction)
    concerns = observed.report.run.concerns if observed.report is not None else ()
    return State("True", reason, degraded_message(reason, fraction=fraction, concerns=concerns))


def _stalled(outcome: RunOutcome) -> State:
    if outcome.failed:
        return State("True", "Failed", outcome.failed_message)
    if outcome.rejected and not outcome.complete:
        return State("True", "NotAccepted", outcome.rejected_message)
    if outcome.stalled and not outcome.complete:
        return State("True", outcome.stalled, outcome.stalled_message)
    return State("False", "Progressing")


def _autoscaling(observed: Observed, outcome: RunOutcome) -> dict[Type, State]:
    """Return whether an object scales the rollouts and reads its metric, for a job that asks for one."""
    scaling = observed.job.spec.rollout.autoscaling
    if scaling is None:
        return {}
    kind = autoscaling.KINDS[scaling.provider]
    child = next((child for child in observed.children.values() if child.ref.kind == kind), None)
    if child is not None:
        blind = State("False", "MetricsUnavailable", child.blind)
        return {Type.AUTOSCALING_ACTIVE: blind if child.blind else State("True", "ScalingActive")}
    if outcome.is_over or outcome.suspending or outcome.suspended or outcome.rejected:
        return {Type.AUTOSCALING_ACTIVE: State("False", "Paused")}
    needed = autoscaling.NEEDS[scaling.provider]
    message = f"nothing scales the rollouts: provider {scaling.provider} needs the API {needed}"
    return {Type.AUTOSCALING_ACTIVE: State("False", "ProviderMissing", message)}


def _reconciling(outcome: RunOutcome, running: State, stalled: State) -> State:
    if stalled.status == "True":
        return State("False", "Blocked")
    if outcome.suspending:
        return State("True", "Suspending")
    if outcome.is_over or outcome.suspended or running.status == "True":
        return State("False", "UpToDate")
    return State("True", "Restarting" if running.reason == "Restarting" else "Starting")


def with_conditions(observed: Observed, status: JobStatus, outcome: RunOutcome, *, now: float) -> JobStatus:
    """Return the status with its conditions, the summary word and the reason behind it."""
    updated = conditions(
        dataclasses.replace(observed, job=observed.job.model_copy(update={"status": status})), outcome, now=now
    )
    by_type, by_reason = statuses(updated), reasons(updated)
    word = reporting.summary(by_type, by_reason, deleting=observed.deleting)
    changes = {
        "conditions": updated,
        "summary": word,
        "reason": _reason_behind(word, by_reason),
        "observed_generation": observed.job.metadata.generation,
    }
    return status.model_copy(update=changes)


def _reason_behind(word: str, why: Mapping[Type, str]) -> str:
    by_word = {
        "Succeeded": Type.COMPLETE,
        "Failed": Type.FAILED,
        "Invalid": Type.ACCEPTED,
        "Suspending": Type.SUSPENDING,
        "Suspended": Type.SUSPENDED,
        "Queued": Type.QUOTA_RESERVED,
        "Stalled": Type.STALLED,
        "Restarting": Type.TRAINER_READY,
        "Degraded": Type.DEGRADED,
    }
    return why.get(by_word.get(word, Type.RUNNING), "Pending")


_STATES = {
    Type.ACCEPTED: ("False", "InvalidSpec"),
    Type.RUNNING: ("False", "NotReady"),
    Type.RECONCILING: ("False", "Blocked"),
    Type.STALLED: ("True", "NotAccepted"),
}


def unreadable_status(raw: Mapping[str, Any], problems: Sequence[str], *, now: float) -> dict[str, Any] | None:
    """Return the status to write; None if it is written, or if the run is over or another controller's."""
    status, generation = raw.get("status") or {}, raw["metadata"].get("generation")
    if (raw.get("spec") or {}).get("managedBy", OUR_OPERATOR) != OUR_OPERATOR:
        return None
    before = {condition["type"]: condition for condition in status.get("conditions") or ()}
    if any(before.get(kind, {}).get("status") == "True" for kind in (Type.COMPLETE, Type.FAILED)):
        return None
    message = shorten("; ".join(problems))
    unreadable = {kind: _unreadable_condition(kind, before.get(kind), message, generation, now) for kind in _STATES}
    others = {kind: condition for kind, condition in before.items() if kind in set(Type) and kind not in unreadable}
    merged = {**others, **unreadable}
    full = {
        **status,
        "observedGeneration": generation,
        "summary": "Invalid",
        "reason": "InvalidSpec",
        "conditions": [merged[kind] for kind in Type if kind in merged],
    }
    return None if full == status else full


def _unreadable_condition(
    kind: Type, before: Mapping[str, Any] | None, message: str, generation: object, now: float
) -> dict[str, Any]:
    state, reason = _STATES[kind]
    since = before["lastTransitionTime"] if before and before["status"] == state else clock.to_timestamp(now)
    text = message if kind in (Type.ACCEPTED, Type.STALLED) else ""
    return {
        "type": str(kind),
        "status": state,
        "reason": reason,
        "message": text,
        "observedGeneration": generation,
        "lastTransitionTime": since,
    }
