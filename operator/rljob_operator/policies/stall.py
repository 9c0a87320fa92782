"""What follows from a run that makes no progress: a condition, and what the job asked for alongside it.

Pure (docs/design/operator.md#s-11-2, #s-11-5).
"""

import dataclasses
from collections.abc import Sequence

from rljob_api import enums, types, waiting
from rljob_api.conditions import STALL_REASONS
from rljob_api.conditions import ConditionType as Type
from rljob_api.manifest.status import JobStatus, StalledStatus
from rljob_api.waiting import Diagnosis, unreachable
from rljob_operator import clock
from rljob_operator.model import POD, Delete, Observed, Pod, Ref, Report
from rljob_operator.policies import attempts, scheduling

# A pod that has no node, or that may not be made.
UNSCHEDULABLE = "PodsUnschedulable"


def diagnose(run: types.RunStatus, observed: Observed, *, now: float) -> Diagnosis:
    """Return why a run makes no progress; Unknown where nothing is known."""
    of_cluster = pods_fault(observed, since=run.last_progress_at, now=now)
    return with_pod(waiting.diagnose(run, now=now), observed.pods) if of_cluster is None else of_cluster


def with_pod(diagnosis: Diagnosis, pods: Sequence[Pod]) -> Diagnosis:
    """Return a diagnosis that names the pod where only one can be meant: the role's only one, or the only unready."""
    if diagnosis.pod:
        return diagnosis
    pods_of_role = [pod for pod in pods if pod.role == diagnosis.role and not pod.deleting and not pod.is_terminal]
    candidates = [pod for pod in pods_of_role if not pod.ready] or pods_of_role
    return dataclasses.replace(diagnosis, pod=candidates[0].name) if len(candidates) == 1 else diagnosis


# What the cluster says of pods comes first: a pod without a node explains everyone who waits for it.
def pods_fault(observed: Observed, *, since: float, now: float) -> Diagnosis | None:
    """Return what keeps a pod from beginning; None if nothing does."""
    diagnosis = scheduling.obstacle(observed, drain_s=0.0, now=now)
    if diagnosis is None:
        return None
    reason = "ImagePullFailed" if diagnosis.reason == "ImagePullFailed" else UNSCHEDULABLE
    return Diagnosis(reason=reason, role=str(diagnosis.role), pod=diagnosis.pod, since=since, message=diagnosis.message)


_KILL_GRACE_S = 5
_LOOK_AGAIN_S = 5.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """The status that results. `diagnosis`: of a run that stalled; None while it continues."""

    status: JobStatus
    diagnosis: Diagnosis | None = None
    fails: bool = False
    deletes: tuple[Delete, ...] = ()
    again_at: float | None = None


def check_progress(observed: Observed, status: JobStatus, *, withheld: Diagnosis | None = None, now: float) -> Stall:
    """Return what there is to say of an active run's progress.

    From half the timeout on `status.stalled` names who holds it up; at the timeout the condition does, and the job's
    stall action is taken: the culprit alone is replaced, once per timeout. A coordinator that does not answer is named
    and nothing is done: the run may well continue. withheld: why a run whose time is over is not ended.
    """
    if observed.silent_since is not None:
        return _silent(observed, status, observed.silent_since, withheld, now=now)
    report, policy = observed.report, observed.job.spec.failure_policy.stall
    if report is None:
        # A new process has heard nothing yet: what was said last remains.
        return Stall(status=status.model_copy(update={"stalled": observed.status.stalled}), diagnosis=_before(observed))
    stood_since = _stood_since(report)
    half_at, whole_at = stood_since + policy.timeout_seconds / 2, stood_since + policy.timeout_seconds
    # What happened since the report was made is not known: it made no progress until then. Starting has a limit of its
    # own.
    starts_until = _starts_until(observed, status)
    if status.first_step_time is None or report.read_at < half_at or now < starts_until:
        again_at = None if status.first_step_time is None else _later(max(half_at, starts_until), now)
        return Stall(status=status.model_copy(update={"stalled": None}), again_at=again_at)
    diagnosis = diagnose(report.run, observed, now=now)
    status = status.model_copy(update={"stalled": _shown(diagnosis)})
    if report.read_at < whole_at:
        return Stall(status=status, again_at=_later(whole_at, now))
    began = _window(observed, timeout_s=policy.timeout_seconds, now=now)
    return Stall(
        status=status,
        diagnosis=diagnosis,
        fails=policy.action == "Fail",
        deletes=_replaced(observed, status, diagnosis, before=began) if policy.action == "Restart" else (),
        again_at=began + policy.timeout_seconds,
    )


def _starts_until(observed: Observed, status: JobStatus) -> float:
    """Return until when a trainer attempt after a failure may start, in unix seconds: it loads, and no step is missed.

    Counted from when its last pod had a node. 0 once it has a step of its own, or where the coordinator does not show.
    """
    number = attempts.current(status, {})
    record, reported = (
        attempts.record(status, number),
        observed.report.run.attempts if observed.report is not None else (),
    )
    if (
        record is None
        or not reported
        or any(attempt.attempt == number and attempt.first_step_at for attempt in reported)
    ):
        return 0.0
    placed_at = (pod.scheduled_at for pod in observed.pods_of(enums.Role.TRAINER, number))
    return max(clock.to_seconds(record.start) or 0.0, *placed_at, 0.0) + observed.job.spec.startup_deadline_seconds


def _later(at: float, now: float) -> float:
    """Return a time to look again: where it has passed, a report of after it is still to come."""
    return at if at > now else now + _LOOK_AGAIN_S


def _stood_since(report: Report) -> float:
    """Return since when nothing moves, by the operator's clock: that of the coordinator's node may go wrong."""
    said_at = report.run.said_at
    return report.run.last_progress_at if not said_at else report.read_at - (said_at - report.run.last_progress_at)


def _silent(observed: Observed, status: JobStatus, since: float, withheld: Diagnosis | None, *, now: float) -> Stall:
    """Return what there is to say of a run whose coordinator does not answer: what keeps its pod away, or that."""
    timeout_s = observed.job.spec.failure_policy.stall.timeout_seconds
    half_at, whole_at = since + timeout_s / 2, since + timeout_s
    if withheld is None and (status.first_step_time is None or now < half_at):
        again_at = None if status.first_step_time is None else half_at
        return Stall(status=status.model_copy(update={"stalled": None}), again_at=again_at)
    fault = pods_fault(observed, since=since, now=now)
    of_coordinator = fault is not None and fault.role == enums.Role.COORDINATOR
    diagnosis = fault if fault is not None and of_coordinator else with_pod(unreachable(since=since), observed.pods)
    status = status.model_copy(update={"stalled": _shown(diagnosis)})
    is_stalled = withheld is not None or now >= whole_at
    # Its first word makes the job due at once.
    again_at = whole_at if now < whole_at else None
    return Stall(status=status, diagnosis=diagnosis if is_stalled else None, again_at=again_at)


def _before(observed: Observed) -> Diagnosis | None:
    condition = next(
        (
            condition
            for condition in observed.status.conditions
            if condition.type == Type.STALLED and condition.status == "True"
        ),
        None,
    )
    if condition is None or condition.reason not in STALL_REASONS:
        return None
    return Diagnosis(reason=condition.reason, role="", since=0.0, message=condition.message)


def _shown(diagnosis: Diagnosis) -> StalledStatus:
    return StalledStatus(
        role=diagnosis.role, pod=diagnosis.pod, since=clock.to_timestamp(diagnosis.since), reason=diagnosis.reason
    )


def _window(observed: Observed, *, timeout_s: float, now: float) -> float:
    """Return when the current timeout window started, counted from when the run was first called stalled."""
    condition = next(
        (
            condition
            for condition in observed.status.conditions
            if condition.type == Type.STALLED and condition.status == "True"
        ),
        None,
    )
    since = clock.to_seconds(condition.last_transition_time) if condition is not None else None
    return now if since is None or since > now else since + (now - since) // timeout_s * timeout_s


def _replaced(observed: Observed, status: JobStatus, diagnosis: Diagnosis, *, before: float) -> tuple[Delete, ...]:
    """Return the deletion of the culprit, unless it began after `before`: then it has been replaced already.

    A pod that waits for a node, or to be made, has no successor that would not wait too.
    """
    if diagnosis.reason == UNSCHEDULABLE:
        return ()
    if diagnosis.role == enums.Role.TRAINER:
        number = attempts.current(status, {})
        record, job = attempts.record(status, number), observed.trainer_jobs().get(number)
        is_old = record is not None and (clock.to_seconds(record.start) or 0.0) < before
        return (Delete(ref=job.ref, uid=job.uid),) if job is not None and is_old and not job.deleting else ()
    named = [pod for pod in observed.pods if pod.role == diagnosis.role and diagnosis.pod in ("", pod.name)]
    old = [pod for pod in named if pod.created_at < before and not pod.deleting]
    first = min(old, key=lambda pod: (pod.created_at, pod.name), default=None)
    return () if first is None else (Delete(ref=Ref(POD, first.name), uid=first.uid, grace_s=_KILL_GRACE_S),)
