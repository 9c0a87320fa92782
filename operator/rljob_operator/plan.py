"""From what is wanted and what is observed to what to do. Pure and total: no clock, no environment, no I/O.

    over? ----------> clean up, later delete          (terminal conditions are asked first and never taken back)
    refused? -------> say so, touch nothing
    stopping? ------> trainer and rollouts, verifiers, coordinator, Suspended
    else -----------> trainer's attempt, then every child that differs

History is written before it is acted on: the status comes first among the actions, always.
"""

import dataclasses
from collections.abc import Iterable

from rljob_api import names
from rljob_api.conditions import ConditionType as Type
from rljob_api.job import OUR_OPERATOR
from rljob_api.job_status import CheckpointStatus, JobStatus, RoleStatus, RolloutStatus
from rljob_operator import conditions, ending_steps, phases, times, trainer_steps
from rljob_operator.model import (
    TRAINER_JOB,
    Action,
    Apply,
    Manifest,
    Observed,
    Plan,
    StatusWrite,
    Wanted,
    earliest,
    ref_of,
)
from rljob_operator.policies import attempts, deadlines, difference, suspend

_LOOK_AGAIN_S = 5.0


def plan(seen: Observed, wanted: Wanted, *, now: float) -> Plan:
    """Return the actions for one job at `now` (unix seconds). Another controller's job, or one that goes, gets none."""
    if seen.deleting or seen.job.spec.managed_by != OUR_OPERATOR:
        return Plan()
    status, known = seen.status, conditions.statuses(seen.status.conditions)
    if phases.is_terminal(known):
        return _finished(seen, succeeded=known.get(Type.COMPLETE) == "True", now=now)
    if wanted.problems:
        course = conditions.Course(rejected="InvalidSpec", rejected_message="; ".join(wanted.problems))
        return _write(seen, status, course, Plan(), now=now)
    stage = suspend.stage(ending_steps.left(seen))
    was_suspending = known.get(Type.SUSPENDING) == "True"
    if suspend.goes_on_stopping(suspend=seen.job.spec.suspend, was_suspending=was_suspending, current=stage):
        return _stop(seen, stage, now=now)
    if seen.job.spec.suspend:
        return _write(seen, _shown(seen, status), conditions.Course(suspended="UserRequested"), Plan(), now=now)
    return _run(seen, wanted, now=now)


def _finished(seen: Observed, *, succeeded: bool, now: float) -> Plan:
    why = conditions.reasons(seen.status.conditions)
    message = next((one.message for one in seen.status.conditions if one.type == Type.FAILED), "")
    course = conditions.Course(
        complete=why[Type.COMPLETE] if succeeded else "",
        failed="" if succeeded else why[Type.FAILED],
        failed_message="" if succeeded else message,
    )
    return _write(
        seen, _shown(seen, seen.status), course, ending_steps.after_end(seen, succeeded=succeeded, now=now), now=now
    )


def _stop(seen: Observed, stage: suspend.SuspendStage, *, now: float) -> Plan:
    status = _shown(seen, _followed(seen, seen.status, now=now))
    number = attempts.current(status, {})
    known = attempts.record(status, number)
    if known is not None and known.end is None:
        job = seen.trainer_jobs().get(number)
        if job is not None and job.ended:
            return _trainer_ended(seen, status, now=now)
        ending = attempts.requested("SuspendRequested")
        status = attempts.with_record(status, attempts.closed(known, ending, step=status.step, now=now))
    asked_at = ending_steps.asked_at(seen.status, now=now)
    actions = ending_steps.stop_actions(seen, stage, asked_at=asked_at, now=now)
    course = conditions.Course(suspending="SuspendRequested")
    return _write(seen, status, course, Plan(actions=actions, again_at=now + _LOOK_AGAIN_S), now=now)


def _trainer_ended(seen: Observed, status: JobStatus, *, now: float) -> Plan:
    """Return a plan that only records how the trainer ended by itself, before anything else is stopped."""
    step = trainer_steps.next_step(seen, status, now=now)
    course = _course(step, suspending="" if step.complete or step.failed else "SuspendRequested")
    base = Plan(again_at=now if step.again_at is None else step.again_at, irrevocable=step.irrevocable)
    number = attempts.current(status, {})
    status = _ended(step, now=now) if step.complete or step.failed else _without_later(step.status, number)
    return _write(seen, status, course, base, now=now)


def _without_later(status: JobStatus, number: int) -> JobStatus:
    """Return the status without an attempt that a job on its way to Suspended does not begin."""
    known = status.trainer
    if known is None:
        return status
    kept = tuple(one for one in known.attempts if one.number <= number)
    return status.model_copy(update={"attempt": number, "trainer": known.model_copy(update={"attempts": kept})})


def _run(seen: Observed, wanted: Wanted, *, now: float) -> Plan:
    known = conditions.statuses(seen.status.conditions)
    resumes = "True" in (known.get(Type.SUSPENDED), known.get(Type.SUSPENDING))
    status = seen.status
    if resumes:
        status = status.model_copy(update={"start_time": None, "first_step_time": None})
    status = _shown(seen, _followed(seen, status, now=now))
    expired = _expired(seen, status, now=now)
    if expired is not None:
        return expired
    step = trainer_steps.next_step(seen, status, now=now)
    if step.complete or step.failed:
        return _write(seen, _ended(step, now=now), _course(step), Plan(again_at=now, irrevocable=True), now=now)
    ends = (
        deadlines.startup_ends(
            start_time=times.to_seconds(status.start_time),
            first_step_time=times.to_seconds(status.first_step_time),
            limit_s=seen.job.spec.startup_deadline_seconds,
        ),
        deadlines.active_ends(
            start_time=times.to_seconds(status.start_time), limit_s=seen.job.spec.active_deadline_seconds
        ),
    )
    actions = (*step.deletes, *trainer_steps.outdated_jobs(seen, step.status), *_applies(seen, wanted, step))
    base = Plan(actions=actions, again_at=earliest(step.again_at, *ends), irrevocable=step.irrevocable)
    return _write(seen, step.status, dataclasses.replace(_course(step), resumed=_was_suspended(seen)), base, now=now)


def _was_suspended(seen: Observed) -> bool:
    known, why = conditions.statuses(seen.status.conditions), conditions.reasons(seen.status.conditions)
    stopped = "True" in (known.get(Type.SUSPENDED), known.get(Type.SUSPENDING))
    return stopped or why.get(Type.SUSPENDED) == "Resumed"


def _course(step: trainer_steps.Step, *, suspending: str = "") -> conditions.Course:
    return conditions.Course(
        suspending=suspending,
        complete=step.complete,
        failed=step.failed,
        failed_message=step.message,
        backing_off=step.backing_off,
    )


def _ended(step: trainer_steps.Step, *, now: float) -> JobStatus:
    return step.status.model_copy(update={"completion_time": times.to_text(now)})


def _expired(seen: Observed, status: JobStatus, *, now: float) -> Plan | None:
    """Return the plan of a run whose time is over; None if it has time left."""
    spec, start = seen.job.spec, times.to_seconds(status.start_time)
    first = times.to_seconds(status.first_step_time)
    if deadlines.is_over(
        deadlines.startup_ends(start_time=start, first_step_time=first, limit_s=spec.startup_deadline_seconds), now
    ):
        message = f"no step was finished within spec.startupDeadlineSeconds = {spec.startup_deadline_seconds}"
        return _fail(seen, status, "StartupDeadlineExceeded", message, now=now)
    if not deadlines.is_over(deadlines.active_ends(start_time=start, limit_s=spec.active_deadline_seconds), now):
        return None
    message = f"the run took longer than spec.activeDeadlineSeconds = {spec.active_deadline_seconds}"
    return _fail(seen, status, "ActiveDeadlineExceeded", message, now=now)


def _fail(seen: Observed, status: JobStatus, reason: str, message: str, *, now: float) -> Plan:
    known = attempts.record(status, attempts.current(status, {}))
    if known is not None and known.end is None:
        closed = attempts.closed(known, attempts.requested(reason), step=status.step, now=now)
        status = attempts.with_record(status, closed)
    status = status.model_copy(update={"completion_time": times.to_text(now)})
    course = conditions.Course(failed=reason, failed_message=message)
    return _write(seen, status, course, Plan(again_at=now, irrevocable=True), now=now)


def _applies(seen: Observed, wanted: Wanted, step: trainer_steps.Step) -> Iterable[Action]:
    number = attempts.current(step.status, {})
    for manifest in (*wanted.first, *wanted.workloads(number)):
        ref = ref_of(manifest)
        # Between two attempts there is no Job to make; that of an attempt that runs is never changed.
        if ref.kind == TRAINER_JOB and (step.attempt is None or ref in seen.children):
            continue
        yield from _apply(seen, manifest)


def _apply(seen: Observed, manifest: Manifest) -> Iterable[Action]:
    child = seen.children.get(ref_of(manifest))
    if child is None:
        yield Apply(manifest=manifest)
    elif not child.deleting and not difference.covers(child.manifest, manifest):
        yield Apply(manifest=manifest, uid=child.uid)


def _steps_before(status: JobStatus) -> int:
    """Return the finished steps when the last attempt ended."""
    known = status.trainer.attempts if status.trainer else ()
    return max((one.step or 0 for one in known if one.end is not None), default=0)


def _followed(seen: Observed, status: JobStatus, *, now: float) -> JobStatus:
    """Return the status with the segment's times and the coordinator's numbers."""
    changes: dict[str, object] = {}
    if status.start_time is None and seen.pods:
        changes["start_time"] = times.to_text(min(pod.created_at for pod in seen.pods))
    report = seen.report
    if report is None:
        return status.model_copy(update=changes)
    start = times.to_seconds(status.start_time)
    changes["step"] = report.step
    # The segment's first step, not the run's: a resumed run starts up anew.
    if status.first_step_time is None and start is not None and report.step > _steps_before(status):
        changes["first_step_time"] = times.to_text(now)
    if report.checkpoint_at is not None:
        changes["last_checkpoint"] = CheckpointStatus(
            step=report.checkpoint_step, time=times.to_text(report.checkpoint_at)
        )
    return status.model_copy(update=changes)


def _shown(seen: Observed, status: JobStatus) -> JobStatus:
    """Return the status with the pods by role."""
    rows, active = [], not seen.job.spec.suspend
    for role in names.Role:
        pods = seen.pods_of(role)
        wanted = conditions.wanted_pods(seen.job.spec, role) if active else 0
        restarts = sum(pod.restarts for pod in pods)
        rows.append(RoleStatus(name=str(role), desired=wanted, ready=sum(pod.ready for pod in pods), restarts=restarts))
    rollout = next(row for row in rows if row.name == names.Role.ROLLOUT)
    shown = RolloutStatus(
        replicas=len(seen.pods_of(names.Role.ROLLOUT)),
        selector=f"rljob.dev/uid={seen.job.metadata.uid},rljob.dev/role={names.Role.ROLLOUT}",
        ready=f"{rollout.ready}/{rollout.desired}",
    )
    return status.model_copy(update={"roles": tuple(rows), "rollout": shown})


def _write(seen: Observed, status: JobStatus, course: conditions.Course, rest: Plan, *, now: float) -> Plan:
    """Return `rest` with the status before it, if that differs from what is written."""
    full = conditions.with_conditions(seen, status, course, now=now)
    if full == seen.status:
        return rest
    return dataclasses.replace(rest, actions=(StatusWrite(status=full), *rest.actions))
