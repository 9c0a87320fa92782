"""From what is wanted and what is observed to what to do. Pure and total: no clock, no environment, no I/O.

    over? ----------> clean up, later delete          (terminal conditions are asked first and never taken back)
    stopping? ------> trainer and rollouts, verifiers, coordinator, Suspended
    not admitted? --> say so; begin nothing           (a run that goes on keeps its children and gets its next attempt)
    else -----------> trainer's attempt, then every child that differs

History is written before it is acted on: the status comes first among the actions, always.
"""

import dataclasses
from collections.abc import Iterable, Set

from rljob_api import names
from rljob_api.conditions import ConditionType as Type
from rljob_api.manifest.job import OUR_OPERATOR
from rljob_api.manifest.status import ImageStatus, JobStatus, LayerStatus, RoleStatus, RolloutStatus
from rljob_operator import clock
from rljob_operator.model import (
    POD_MAKERS,
    TRAINER_JOB,
    Action,
    Annotate,
    Apply,
    Delete,
    Manifest,
    Observed,
    Plan,
    Ref,
    StatusWrite,
    Wanted,
    earliest,
    ref_of,
)
from rljob_operator.policies import attempts, deadlines, drift, failure, pinning, refusals, scheduling
from rljob_operator.policies import stall as stalling
from rljob_operator.reconcile import conditions, scale_down, suspend, trainer
from rljob_operator.reconcile import status as reporting
from rljob_operator.resources import autoscaling

_LOOK_AGAIN_S = 5.0
# How often a workload that lacks pods is looked at, when nothing is told.
_LACKS_S = 30.0


def plan(seen: Observed, wanted: Wanted, *, now: float) -> Plan:
    """Return the actions for one job at `now` (unix seconds). Another controller's job, or one that goes, gets none."""
    if seen.deleting or seen.job.spec.managed_by != OUR_OPERATOR:
        return Plan()
    known = conditions.statuses(seen.status.conditions)
    if reporting.is_terminal(known):
        return _finished(seen, succeeded=known.get(Type.COMPLETE) == "True", now=now)
    rejected = _rejected(wanted)
    stage = suspend.stage(suspend.pods_left(seen, now=now))
    was_suspending = known.get(Type.SUSPENDING) == "True"
    if suspend.keeps_stopping(suspend=seen.job.spec.suspend, was_suspending=was_suspending, current=stage):
        return _stop(seen, stage, rejected, now=now)
    if seen.job.spec.suspend:
        course = dataclasses.replace(rejected, suspended="UserRequested")
        status = seen.status.model_copy(update={"scheduled_time": None})
        return _write(seen, _shown(seen, status, now=now), course, _given_up(seen, now=now), now=now)
    stopped = _is_stopped(seen)
    if wanted.problems and (stopped or not attempts.current(seen.status, seen.trainer_jobs())):
        course = dataclasses.replace(rejected, suspended="UserRequested" if stopped else "")
        return _write(seen, seen.status, course, Plan(), now=now)
    return _run(seen, wanted, now=now)


def _rejected(wanted: Wanted) -> conditions.Course:
    """Return the course of a job that may not begin; an empty one if it may."""
    if wanted.problems:
        return conditions.Course(rejected="InvalidSpec", rejected_message="; ".join(wanted.problems))
    return conditions.Course()


def _finished(seen: Observed, *, succeeded: bool, now: float) -> Plan:
    why = conditions.reasons(seen.status.conditions)
    message = next((one.message for one in seen.status.conditions if one.type == Type.FAILED), "")
    course = conditions.Course(
        complete=why[Type.COMPLETE] if succeeded else "",
        failed="" if succeeded else why[Type.FAILED],
        failed_message="" if succeeded else message,
    )
    given_up, cleanup = _given_up(seen, now=now), suspend.cleanup(seen, succeeded=succeeded, now=now)
    rest = Plan(
        actions=(*given_up.actions, *cleanup.actions),
        again_at=earliest(given_up.again_at, cleanup.again_at),
        irrevocable=given_up.irrevocable or cleanup.irrevocable,
    )
    return _write(seen, _shown(seen, seen.status, now=now), course, rest, now=now)


def _stop(seen: Observed, stage: suspend.SuspendStage, rejected: conditions.Course, *, now: float) -> Plan:
    status = _shown(seen, _followed(seen, seen.status, now=now), now=now)
    number = attempts.current(status, {})
    known = attempts.record(status, number)
    if known is not None and known.end is None:
        job = seen.trainer_jobs().get(number)
        if job is not None and job.ended:
            return _trainer_ended(seen, status, now=now)
        ending = attempts.requested(attempts.SUSPENDED)
        status = attempts.with_record(status, attempts.closed(known, ending, step=status.step, now=now))
    asked_at = suspend.asked_at(seen.status, now=now)
    actions = suspend.stop_actions(seen, stage, asked_at=asked_at, now=now)
    course = dataclasses.replace(rejected, suspending="SuspendRequested")
    given_up = _given_up(seen, now=now)
    rest = dataclasses.replace(given_up, actions=(*actions, *given_up.actions), again_at=now + _LOOK_AGAIN_S)
    return _write(seen, status, course, rest, now=now)


def _given_up(seen: Observed, *, now: float) -> Plan:
    """Return the deletions by force of what goes on nodes that do not answer, and when the next one is due."""
    forced = failure.forced_deletions(seen.pods, now=now)
    return Plan(actions=forced, again_at=failure.next_loss_at(seen.pods, now=now), irrevocable=bool(forced))


def _trainer_ended(seen: Observed, status: JobStatus, *, now: float) -> Plan:
    """Return a plan that only records how the trainer ended by itself, before anything else is stopped."""
    step = trainer.next_step(seen, status, now=now)
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
    status = seen.status
    if _is_stopped(seen):
        first = attempts.current(status, seen.trainer_jobs()) + 1
        anew = {"start_time": None, "scheduled_time": None, "first_step_time": None, "first_attempt": first}
        status = status.model_copy(update=anew)
    status = _shown(seen, _placed(seen, _followed(seen, status, now=now)), now=now)
    verdict = deadlines.judge(seen, status, now=now)
    if verdict.reason:
        return _fail(seen, status, verdict.reason, verdict.message, now=now)
    refusing = failure.misconfigured(seen.pods)
    if refusing is not None:
        message = f"{refusing.name} refuses its configuration, exit code {refusing.last_exit_code}"
        return _fail(seen, status, attempts.CONFIGURATION_ERROR, message, now=now)
    if seen.report is not None and seen.report.run.phase is names.Phase.FAILED:
        return _fail(seen, status, attempts.CONFIGURATION_ERROR, seen.report.run.failure, now=now)
    step = trainer.next_step(seen, status, now=now)
    if step.complete or step.failed:
        return _write(seen, _ended(step, now=now), _course(step), Plan(again_at=now, irrevocable=True), now=now)
    stall = stalling.look(seen, step.status, withheld=verdict.withheld, now=now)
    if stall.fails and stall.diagnosis is not None:
        message = f"{stall.diagnosis.reason}: {stall.diagnosis.message}"
        return _fail(seen, stall.status, "StallTimeout", message, now=now)
    given_up = _given_up(seen, now=now)
    outdated = trainer.outdated_jobs(seen, step.status)
    actions = (*step.deletes, *outdated, *stall.deletes, *given_up.actions, *_children(seen, wanted, step, now))
    again_at = earliest(
        step.again_at,
        stall.again_at,
        verdict.again_at,
        given_up.again_at,
        now + _LACKS_S if seen.short else None,
    )
    irrevocable = step.irrevocable or bool(stall.deletes) or given_up.irrevocable
    base = Plan(actions=actions, again_at=again_at, irrevocable=irrevocable)
    course = dataclasses.replace(
        _course(step),
        resumed=_was_suspended(seen),
        not_admitted="; ".join(wanted.problems),
        stalled=stall.diagnosis.reason if stall.diagnosis else "",
        stalled_message=stall.diagnosis.message if stall.diagnosis else "",
    )
    return _write(seen, stall.status, course, base, now=now)


def _is_stopped(seen: Observed) -> bool:
    known = conditions.statuses(seen.status.conditions)
    return "True" in (known.get(Type.SUSPENDED), known.get(Type.SUSPENDING))


def _was_suspended(seen: Observed) -> bool:
    return _is_stopped(seen) or conditions.reasons(seen.status.conditions).get(Type.SUSPENDED) == "Resumed"


def _course(step: trainer.Step, *, suspending: str = "") -> conditions.Course:
    return conditions.Course(
        suspending=suspending,
        complete=step.complete,
        failed=step.failed,
        failed_message=step.message,
        backing_off=step.backing_off,
    )


def _ended(step: trainer.Step, *, now: float) -> JobStatus:
    return step.status.model_copy(update={"completion_time": clock.to_timestamp(now)})


def _fail(seen: Observed, status: JobStatus, reason: str, message: str, *, now: float) -> Plan:
    known = attempts.record(status, attempts.current(status, {}))
    if known is not None and known.end is None:
        closed = attempts.closed(known, attempts.requested(reason), step=status.step, now=now)
        status = attempts.with_record(status, closed)
    status = status.model_copy(update={"completion_time": clock.to_timestamp(now)})
    course = conditions.Course(failed=reason, failed_message=message)
    return _write(seen, status, course, Plan(again_at=now, irrevocable=True), now=now)


def _children(seen: Observed, wanted: Wanted, step: trainer.Step, now: float) -> Iterable[Action]:
    """Yield what makes the children what they should be, and the deletions of what is not wanted any more."""
    if wanted.settled or (wanted.problems and not wanted.first):
        return
    workloads = wanted.workloads(attempts.current(step.status, {}))
    refs = {ref_of(manifest) for manifest in (*wanted.first, *workloads)}
    yield from suspend.unwanted(seen, refs)
    for manifest in (*wanted.first, *workloads):
        ref = ref_of(manifest)
        if ref.kind == TRAINER_JOB:
            yield from _trainer_job(seen, manifest, refs, step)
        else:
            yield from _apply(seen, manifest, refs, now=now)


def _trainer_job(seen: Observed, manifest: Manifest, wanted: Set[Ref], step: trainer.Step) -> Iterable[Action]:
    """Yield the Job of an attempt if it has to be made: between two attempts there is none, and one that runs is never
    changed, but for the labels by which it is found.
    """
    child = seen.children.get(ref_of(manifest))
    if child is None:
        # A run that has begun is not held up: what guards its pods was there when they were first made.
        needs = _guards(manifest, wanted) if step.attempt == 1 else ()
        if step.attempt is not None:
            yield Apply(manifest=manifest, needs=needs)
    elif not child.deleting and not drift.covers(drift.labels(child.manifest), drift.labels(manifest)):
        yield Annotate(ref=child.ref, uid=child.uid, labels=drift.labels(manifest))


def _guards(manifest: Manifest, wanted: Set[Ref]) -> tuple[Ref, ...]:
    """Return what must be there before pods of a workload are, of what the job wants: the policy of its role, the
    account without rights, the config. Another's object of such a name is none of these.
    """
    labels = drift.labels(manifest)
    job, role = labels.get("rljob.dev/job", ""), labels.get("rljob.dev/role", "")
    own = f"{job}-{role}"
    guards = (Ref("NetworkPolicy", own), Ref("ServiceAccount", own), Ref("ConfigMap", f"{job}-config"))
    return tuple(guard for guard in guards if guard in wanted)


def _apply(seen: Observed, manifest: Manifest, wanted: Set[Ref], *, now: float) -> Iterable[Action]:
    ref = ref_of(manifest)
    child = seen.children.get(ref)
    if child is None:
        yield Apply(manifest=manifest, needs=_guards(manifest, wanted) if ref.kind in POD_MAKERS else ())
        return
    if child.role is names.Role.ROLLOUT:
        smaller = scale_down.shrink(
            seen, num_set=child.wanted_replicas, num_wanted=autoscaling.effective_replicas(seen.job.spec)
        )
        yield from smaller.marks
        if smaller.waits:
            return
    if child.deleting:
        return
    if not pinning.may_become(child, manifest):
        if not child.wanted_replicas and not seen.pods_of(names.Role.COORDINATOR):
            # Made anew in the next pass. The claims that it made stay: they belong to nobody.
            yield Delete(ref=child.ref, uid=child.uid)
            return
        manifest = pinning.with_claims_of(child, manifest)
    due_at = drift.due_at(child.manifest, manifest, seen.written.get(child.uid), now=now)
    if due_at is not None:
        yield Apply(manifest=manifest, uid=child.uid, due_at=due_at)


def _followed(seen: Observed, status: JobStatus, *, now: float) -> JobStatus:
    """Return the status with the segment's times and the coordinator's numbers."""
    if status.start_time is None and seen.pods:
        began = clock.to_timestamp(min(pod.created_at for pod in seen.pods))
        status = status.model_copy(update={"start_time": began})
    return reporting.with_report(status, seen.report, started_at=clock.to_seconds(status.start_time), now=now)


def _placed(seen: Observed, status: JobStatus) -> JobStatus:
    """Return the status with when all pods had a node, until the first step: from then on nothing counts from it."""
    if status.first_step_time is not None:
        return status
    placed = scheduling.placed_at(seen.job.spec, seen.pods, attempt=status.attempt)
    return status.model_copy(update={"scheduled_time": None if placed is None else clock.to_timestamp(placed)})


def _shown(seen: Observed, status: JobStatus, *, now: float) -> JobStatus:
    """Return the status with the pods by role."""
    rows, active = [], not seen.job.spec.suspend
    for role in names.Role:
        pods = seen.pods_of(role)
        wanted = scheduling.wanted_pods(seen.job.spec, role) if active else 0
        restarts = sum(pod.restarts for pod in pods)
        rows.append(RoleStatus(name=str(role), desired=wanted, ready=sum(pod.ready for pod in pods), restarts=restarts))
    rollout = next(row for row in rows if row.name == names.Role.ROLLOUT)
    status = reporting.with_scaling(status, seen.status, to=rollout.desired, now=now)
    shown = RolloutStatus.model_validate(
        {
            "replicas": len(seen.pods_of(names.Role.ROLLOUT)),
            "selector": f"rljob.dev/uid={seen.job.metadata.uid},rljob.dev/role={names.Role.ROLLOUT}",
            "ready": f"{rollout.ready}/{rollout.desired}",
            "onLatest": reporting.on_latest(seen.status, seen.report),
        }
    )
    images = tuple(ImageStatus(name=str(role), image=image) for role, image in sorted(seen.images.items()))
    changes = {"roles": tuple(rows), "rollout": shown, "images": images, "stalled": None}
    verdict = conditions.isolation_verdict(seen)
    if verdict is not None:
        changes["isolation"] = tuple(LayerStatus(name=name, state=state) for name, state in verdict.layers.items())
    return status.model_copy(update=changes)


def _write(seen: Observed, status: JobStatus, course: conditions.Course, rest: Plan, *, now: float) -> Plan:
    """Return what of `rest` is due, with the status before it, if that differs from what is written."""
    rest = refusals.held_back(rest, seen, now=now)
    course = dataclasses.replace(course, refused=refusals.shown(rest.refused, now=now))
    full = conditions.with_conditions(seen, status, course, now=now)
    if full == seen.status:
        return rest
    return dataclasses.replace(rest, actions=(StatusWrite(status=full), *rest.actions))
