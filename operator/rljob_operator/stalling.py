"""What follows from a run that stands still: a condition, and what the job asked for beside it. Pure (11.2, 11.5)."""

import dataclasses

from rljob_api import names
from rljob_api.conditions import STALL_REASONS
from rljob_api.conditions import ConditionType as Type
from rljob_api.job_status import JobStatus, StalledStatus
from rljob_api.waiting import Diagnosis, unreachable
from rljob_operator import times
from rljob_operator.model import POD, Delete, Observed, Ref
from rljob_operator.policies import attempts
from rljob_operator.policies.diagnose import diagnose, with_pod
from rljob_operator.policies.stall import StallState, stall_state

# A coordinator that was not heard of for this long is not read.
_FRESH_S = 30.0
_KILL_GRACE_S = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """The status that results. `diagnosis`: of a run that stalled; None while it goes on."""

    status: JobStatus
    diagnosis: Diagnosis | None = None
    fails: bool = False
    deletes: tuple[Delete, ...] = ()
    again_at: float | None = None


def look(seen: Observed, status: JobStatus, *, now: float) -> Stall:
    """Return what there is to say of an active run's progress.

    From half the timeout on `status.stalled` names who holds it up; at the timeout the condition does, and the job's
    stall action is taken: the culprit alone is replaced, once per timeout.
    """
    report, policy = seen.report, seen.job.spec.failure_policy.stall
    if report is None:
        # A new process has heard nothing yet: what was said last stands.
        return Stall(status=status.model_copy(update={"stalled": seen.status.stalled}), diagnosis=_before(seen))
    readable = now - report.read_at < _FRESH_S
    stood_since = report.run.last_progress_at if readable else report.read_at
    state = stall_state(
        counter_readable=readable,
        active=True,
        past_startup=status.first_step_time is not None,
        last_progress_at=stood_since,
        timeout_s=policy.timeout_seconds,
        now=now,
    )
    half_at, whole_at = stood_since + policy.timeout_seconds / 2, stood_since + policy.timeout_seconds
    if status.first_step_time is None or now < half_at:
        return Stall(status=status.model_copy(update={"stalled": None}), again_at=half_at)
    found = diagnose(report.run, seen.pods, now=now) if readable else _unreachable(seen, since=report.read_at)
    status = status.model_copy(update={"stalled": _shown(found)})
    if state is StallState.PROGRESSING or now < whole_at:
        return Stall(status=status, again_at=whole_at)
    began = _window(seen, timeout_s=policy.timeout_seconds, now=now)
    return Stall(
        status=status,
        diagnosis=found,
        fails=policy.action == "Fail",
        deletes=_replaced(seen, status, found, before=began) if policy.action == "Restart" else (),
        again_at=began + policy.timeout_seconds,
    )


def _unreachable(seen: Observed, *, since: float) -> Diagnosis:
    return with_pod(unreachable(since=since), seen.pods)


def _before(seen: Observed) -> Diagnosis | None:
    known = next((one for one in seen.status.conditions if one.type == Type.STALLED and one.status == "True"), None)
    if known is None or known.reason not in STALL_REASONS:
        return None
    return Diagnosis(reason=known.reason, role="", since=0.0, message=known.message)


def _shown(found: Diagnosis) -> StalledStatus:
    return StalledStatus(role=found.role, pod=found.pod, since=times.to_text(found.since), reason=found.reason)


def _window(seen: Observed, *, timeout_s: float, now: float) -> float:
    """Return the begin of the timeout that runs now, counted from when the run was first called stalled."""
    known = next((one for one in seen.status.conditions if one.type == Type.STALLED and one.status == "True"), None)
    since = times.to_seconds(known.last_transition_time) if known is not None else None
    return now if since is None or since > now else since + (now - since) // timeout_s * timeout_s


def _replaced(seen: Observed, status: JobStatus, found: Diagnosis, *, before: float) -> tuple[Delete, ...]:
    """Return the deletion of the culprit, unless it began after `before`: then it has been replaced already."""
    if found.role == names.Role.TRAINER:
        number = attempts.current(status, {})
        record, job = attempts.record(status, number), seen.trainer_jobs().get(number)
        is_old = record is not None and (times.to_seconds(record.start) or 0.0) < before
        return (Delete(ref=job.ref, uid=job.uid),) if job is not None and is_old and not job.deleting else ()
    named = [pod for pod in seen.pods if pod.role == found.role and found.pod in ("", pod.name)]
    old = [pod for pod in named if pod.created_at < before and not pod.deleting]
    first = min(old, key=lambda pod: (pod.created_at, pod.name), default=None)
    return () if first is None else (Delete(ref=Ref(POD, first.name), uid=first.uid, grace_s=_KILL_GRACE_S),)
