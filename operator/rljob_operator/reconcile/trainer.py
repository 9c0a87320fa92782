"""What to do about the trainer of an active job: the next attempt, the end of one, or the end of the run.

no record --> started(n) --> Job n made --> uid recorded --> ended: complete, or record closed
                  ^                                                        |
                  '----- backoff <-- every pod of n terminal <-------------'
"""

import dataclasses

from rljob_api import enums, lifecycle
from rljob_api.manifest.job import JobSpec
from rljob_api.manifest.status import AttemptStatus, JobStatus, RestartsStatus
from rljob_operator.model import POD, Child, Delete, Observed, Pod, Ref
from rljob_operator.policies import attempts, deadlines, failure

_KILL_GRACE_S = 5
_LOOK_AGAIN_S = 5.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainerStep:
    """The status that results, and what follows. attempt: whose Job must exist; None if none has to be made."""

    status: JobStatus
    attempt: int | None = None
    deletes: tuple[Delete, ...] = ()
    again_at: float | None = None
    complete: str = ""
    failed: str = ""
    message: str = ""
    backing_off: bool = False
    irrevocable: bool = False


def next_step(observed: Observed, status: JobStatus, *, now: float) -> TrainerStep:
    """Return what to do about the trainer; `status` is the one to build on."""
    jobs = observed.trainer_jobs()
    number = attempts.current(status, jobs)
    if number == 0:
        return _begin(status, 1, now=now)
    record, job = attempts.record(status, number), jobs.get(number)
    if record is None:
        record = attempts.started(number, now=now)
        status = attempts.with_record(status, record)
    if record.end is None:
        return _go_on(observed, status, record, job, now=now)
    return _after(observed, status, record, now=now)


def _begin(status: JobStatus, number: int, *, now: float) -> TrainerStep:
    status = attempts.with_record(status, attempts.started(number, now=now))
    return TrainerStep(status=status, attempt=number, irrevocable=True)


def _go_on(
    observed: Observed, status: JobStatus, record: AttemptStatus, job: Child | None, *, now: float
) -> TrainerStep:
    if job is None:
        if record.uid is None:
            alive = bool(_alive(observed, now=now))
            # A Job that went before its uid was written may have left pods: two of one number would not be
            # distinguished.
            return TrainerStep(status=status, attempt=None if alive else record.number)
        return _close(observed, status, record, attempts.lost(), now=now)
    if record.uid is None:
        record = record.model_copy(update={"uid": job.uid})
        status = attempts.with_record(status, record)
    if job.ended == "Complete":
        return _succeeded(observed, status, record, now=now)
    pods, policy = observed.pods_of(enums.Role.TRAINER, record.number), observed.job.spec.failure_policy
    # That it made no step is known of a run that is heard of, and of no other.
    fruitless = attempts.num_fruitless(status, step=status.step) if observed.hears is not None else 0
    if job.ended == "Failed" or attempts.first_failed(pods) is not None:
        return _close(observed, status, record, attempts.ending_of(pods, policy=policy, fruitless=fruitless), now=now)
    lost = next((pod for pod in pods if failure.is_lost(pod, now=now)), None)
    if lost is not None:
        # Its Job would wait for it, for a pod that goes has not failed, and so would the next attempt.
        return _close(
            observed, status, record, attempts.ending_of_lost(lost, policy=policy, fruitless=fruitless), now=now
        )
    # A Job that another hand is deleting runs on until it is gone, and is lost then.
    return TrainerStep(status=status, attempt=None if job.deleting else record.number)


def _succeeded(observed: Observed, status: JobStatus, record: AttemptStatus, *, now: float) -> TrainerStep:
    ended_at = max((pod.finished_at for pod in observed.pods_of(enums.Role.TRAINER, record.number)), default=0.0)
    says_finished = observed.report is not None and observed.report.run.phase is enums.Phase.FINISHED
    if not says_finished and not _is_unheard(observed, since=ended_at, now=now):
        return TrainerStep(status=status, again_at=now + _LOOK_AGAIN_S)
    ending = attempts.Ending(
        outcome=attempts.SUCCEEDED, reason="Finished", failure_class=lifecycle.FailureClass.FINISHED, exit_code=0
    )
    closed = attempts.closed(record, ending, step=status.step, now=now)
    reason = (
        "DataExhausted" if (status.step or 0) < observed.job.spec.max_steps and says_finished else "MaxStepsReached"
    )
    return TrainerStep(status=attempts.with_record(status, closed), complete=reason, irrevocable=True)


def _is_unheard(observed: Observed, *, since: float, now: float) -> bool:
    """Return whether the coordinator had its minute after `since` and did not say that the run has finished: it was
    heard and says otherwise, or it was asked in vain as long, or there is none to ask. One that was not asked yet was
    not: a new process has all to hear first.
    """
    if now < since + deadlines.ASK_S:
        return False
    if observed.silent_since is not None:
        return now >= observed.silent_since + deadlines.ASK_S
    heard = observed.report is not None and observed.report.read_at >= since + deadlines.ASK_S
    return heard or not observed.pods_of(enums.Role.COORDINATOR)


def _alive(observed: Observed, *, now: float) -> list[Pod]:
    """Return the trainer's pods that are waited for before another attempt begins: not those on a lost node."""
    pods = observed.pods_of(enums.Role.TRAINER)
    return [pod for pod in pods if not pod.is_terminal and not failure.is_lost(pod, now=now)]


def _close(
    observed: Observed, status: JobStatus, record: AttemptStatus, ending: attempts.Ending, *, now: float
) -> TrainerStep:
    closed = attempts.closed(record, ending, step=status.step, now=now)
    status = attempts.counted(attempts.with_record(status, closed), ending)
    if ending.fatal:
        message = f"attempt {record.number} ended with {ending.reason}, exit code {ending.exit_code}"
        return TrainerStep(status=status, failed=ending.fatal, message=message, irrevocable=True)
    return dataclasses.replace(_after(observed, status, closed, now=now), irrevocable=True)


def _after(observed: Observed, status: JobStatus, last: AttemptStatus, *, now: float) -> TrainerStep:
    """Return what follows a closed record: the budget, then its pods, then the wait, then the next attempt."""
    exceeded = _exceeded(observed.job.spec, status)
    if exceeded is not None:
        message = f"attempt {last.number} ended with {last.reason}; {_counts(status)}"
        return TrainerStep(status=status, failed=exceeded, message=message, irrevocable=True)
    alive = _alive(observed, now=now)
    held_jobs = _held_jobs(observed, now=now)
    if alive:
        kills = (
            Delete(ref=Ref(POD, pod.name), uid=pod.uid, grace_s=_KILL_GRACE_S) for pod in alive if not pod.deleting
        )
        return TrainerStep(status=status, deletes=(*held_jobs, *kills), backing_off=True, again_at=now + _LOOK_AGAIN_S)
    begins_at = attempts.next_start(status)
    if now < begins_at:
        return TrainerStep(status=status, deletes=held_jobs, backing_off=True, again_at=begins_at)
    return _begin(status, last.number + 1, now=now)


def _held_jobs(observed: Observed, *, now: float) -> tuple[Delete, ...]:
    """Return the deletions of Jobs that hold a lost pod: by its finalizer it stays until it has failed, which no one
    on its node will say.
    """
    lost = {pod.attempt for pod in observed.pods_of(enums.Role.TRAINER) if failure.is_lost(pod, now=now)}
    jobs = sorted(observed.trainer_jobs().items())
    return tuple(Delete(ref=job.ref, uid=job.uid) for attempt, job in jobs if attempt in lost and not job.deleting)


def outdated_jobs(observed: Observed, status: JobStatus) -> tuple[Delete, ...]:
    """Return the deletions of Jobs of earlier attempts: their ends are written by the time a later one begins."""
    number = attempts.current(status, {})
    jobs = sorted(observed.trainer_jobs().items())
    return tuple(Delete(ref=job.ref, uid=job.uid) for attempt, job in jobs if attempt < number and not job.deleting)


def _exceeded(spec: JobSpec, status: JobStatus) -> str | None:
    restarts, policy = status.restarts or RestartsStatus(), spec.failure_policy
    return lifecycle.exceeded_budget(
        application=restarts.application,
        infrastructure=restarts.infrastructure,
        max_trainer_restarts=policy.max_trainer_restarts,
        max_infra_restarts=policy.max_infra_restarts,
    )


def _counts(status: JobStatus) -> str:
    restarts = status.restarts or RestartsStatus()
    return f"{restarts.application} application and {restarts.infrastructure} infrastructure failures"
