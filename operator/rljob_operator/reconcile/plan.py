"""From what is wanted and what is observed to what to do. Pure and total: no clock, no environment, no I/O.

    over? ----------> clean up, later delete          (asked first; nothing but a retry takes a failure back)
    stopping? ------> trainer and rollouts, verifiers, coordinator, Suspended
    not admitted? --> say so; begin nothing           (a running one keeps its children and gets its next attempt)
    else -----------> trainer's attempt, then every child that differs

History is written before it is acted on: the status comes first among the actions, always.
"""

import dataclasses
from collections.abc import Iterable, Set

from rljob_api import enums, suites
from rljob_api.conditions import ConditionType as Type
from rljob_api.manifest.job import OUR_OPERATOR
from rljob_api.manifest.status import ImageStatus, JobStatus, LayerStatus, RoleStatus, RolloutStatus
from rljob_operator import clock
from rljob_operator.model import (
    CLAIM,
    POD_MAKERS,
    TRAINER_JOB,
    Action,
    Annotate,
    Apply,
    DesiredObjects,
    Manifest,
    Observed,
    Plan,
    Ref,
    StatusWrite,
    earliest,
    ref_of,
)
from rljob_operator.policies import attempts, deadlines, drift, failure, refusals, retry, scheduling, usage
from rljob_operator.policies import stall as stalling
from rljob_operator.queueing import admission, answers
from rljob_operator.reconcile import conditions, scale_down, suspend, trainer
from rljob_operator.reconcile import status as reporting
from rljob_operator.resources import autoscaling

_LOOK_AGAIN_S = 5.0
# How often a workload that lacks pods is looked at, when nothing is reported.
_LACKS_S = 30.0


def plan(observed: Observed, desired: DesiredObjects, *, now: float) -> Plan:
    """Return the actions for one job at `now` (unix seconds). Another controller's job, or one that goes, gets none."""
    if observed.deleting or observed.job.spec.managed_by != OUR_OPERATOR:
        return Plan()
    statuses = conditions.statuses(observed.status.conditions)
    if reporting.is_terminal(statuses):
        if retry.is_asked_for(observed.job.spec, observed.status):
            return _retry(observed, now=now)
        return _finished(observed, succeeded=statuses.get(Type.COMPLETE) == "True", now=now)
    rejected = _rejected(desired)
    stage = suspend.stage(suspend.pods_left(observed, now=now))
    was_suspending = statuses.get(Type.SUSPENDING) == "True"
    if suspend.keeps_stopping(suspend=observed.job.spec.suspend, was_suspending=was_suspending, current=stage):
        return _stop(observed, stage, rejected, now=now)
    if was_suspending and retry.is_stopping(observed.status) and not observed.job.spec.suspend:
        outcome = dataclasses.replace(rejected, suspended=retry.REQUESTED)
        return _write(observed, _shown(observed, observed.status, now=now), outcome, Plan(again_at=now), now=now)
    if observed.job.spec.suspend or _waits_for_another(observed, desired, stage):
        outcome = dataclasses.replace(rejected, suspended=_why_suspended(observed))
        status = observed.status.model_copy(update={"scheduled_time": None})
        rest = _asked_of_queue(observed, desired, _given_up(observed, now=now), now=now)
        return _write(observed, _shown(observed, status, now=now), outcome, rest, now=now)
    # What is not admitted keeps a run from beginning or going on after a stop. One under way keeps what it has.
    stopped = _is_stopped(observed)
    if desired.problems and (stopped or not attempts.current(observed.status, observed.trainer_jobs())):
        outcome = dataclasses.replace(rejected, suspended="UserRequested" if stopped else "")
        rest = _asked_of_queue(observed, desired, Plan(), now=now) if observed.quota is not None else Plan()
        return _write(observed, observed.status, outcome, rest, now=now)
    return _run(observed, desired, now=now)


def _retry(observed: Observed, *, now: float) -> Plan:
    """Return a plan that only takes the failure back. What is left of the run is stopped next, as for a suspension, and
    the run then resumes as from one.
    """
    outcome = conditions.RunOutcome(suspending=retry.REQUESTED)
    status = _shown(observed, retry.begun(observed.status, observed.job.spec), now=now)
    return _write(observed, status, outcome, Plan(again_at=now, irrevocable=True), now=now)


def _rejected(desired: DesiredObjects) -> conditions.RunOutcome:
    """Return the course of a job that may not begin; an empty one if it may."""
    if desired.problems:
        return conditions.RunOutcome(rejected=desired.reason, rejected_message="; ".join(desired.problems))
    return conditions.RunOutcome()


def _waits_for_another(observed: Observed, desired: DesiredObjects, stage: suspend.SuspendStage) -> bool:
    """Return whether a job that has no pod was admitted with what it asked for before its manifest was changed."""
    quota = observed.quota
    if quota is None or not quota.admitted or stage is not suspend.SuspendStage.SUSPENDED or desired.queued is None:
        return False
    return not answers.is_for(quota.workload, desired.queued)


def _asked_of_queue(observed: Observed, desired: DesiredObjects, rest: Plan, *, now: float) -> Plan:
    """Return the plan of a job without pods with what its queue is told; what may not begin asks for nothing."""
    queued = None if desired.problems else desired.queued
    actions = answers.while_stopped(observed, queued, now=now)
    # What it is refused for may be of the cluster, which no watch of ours reports on.
    again_at = now + _LACKS_S if desired.problems and observed.quota is not None else None
    return dataclasses.replace(rest, actions=(*rest.actions, *actions), again_at=earliest(rest.again_at, again_at))


def _why_suspended(observed: Observed) -> str:
    quota = observed.quota
    if quota is None or quota.suspended_by_user:
        return "UserRequested"
    return "Evicted" if quota.reason == admission.DEACTIVATED else "WaitingForQuota"


def _why_suspending(observed: Observed) -> str:
    quota = observed.quota
    if quota is None or quota.suspended_by_user or quota.admitted:
        return "SuspendRequested"
    return "Preempted" if quota.evicted == "Preempted" else "QuotaEvicted"


def _finished(observed: Observed, *, succeeded: bool, now: float) -> Plan:
    reasons = conditions.reasons(observed.status.conditions)
    message = next((condition.message for condition in observed.status.conditions if condition.type == Type.FAILED), "")
    outcome = conditions.RunOutcome(
        complete=reasons[Type.COMPLETE] if succeeded else "",
        failed="" if succeeded else reasons[Type.FAILED],
        failed_message="" if succeeded else message,
    )
    given_up, cleanup = _given_up(observed, now=now), suspend.cleanup(observed, succeeded=succeeded, now=now)
    freed = answers.when_over(
        observed, succeeded=succeeded, message=reasons[Type.COMPLETE if succeeded else Type.FAILED], now=now
    )
    rest = Plan(
        actions=(*given_up.actions, *cleanup.actions, *freed),
        again_at=earliest(given_up.again_at, cleanup.again_at),
        irrevocable=given_up.irrevocable or cleanup.irrevocable,
    )
    return _write(observed, _shown(observed, observed.status, now=now), outcome, rest, now=now)


def _stop(observed: Observed, stage: suspend.SuspendStage, rejected: conditions.RunOutcome, *, now: float) -> Plan:
    status = _shown(observed, _followed(observed, observed.status, now=now), now=now)
    number = attempts.current(status, {})
    attempt = attempts.record(status, number)
    if attempt is not None and attempt.end is None:
        job = observed.trainer_jobs().get(number)
        # It ended by itself before the stop reached it: recorded as that, before anything else is stopped.
        if job is not None and job.ended:
            return _trainer_ended(observed, status, now=now)
        ending = attempts.requested(attempts.SUSPENDED)
        status = attempts.with_record(status, attempts.closed(attempt, ending, step=status.step, now=now))
    asked_at = suspend.asked_at(observed.status, now=now)
    actions = suspend.stop_actions(observed, stage, asked_at=asked_at, now=now)
    was_suspending = conditions.statuses(observed.status.conditions).get(Type.SUSPENDING) == "True"
    reason = conditions.reasons(observed.status.conditions)[Type.SUSPENDING] if was_suspending else ""
    outcome = dataclasses.replace(rejected, suspending=reason or _why_suspending(observed))
    given_up = _given_up(observed, now=now)
    # A queue that seems to have taken the quota back is asked again before a run is stopped for it.
    lost_quota = observed.quota is not None and not observed.quota.suspended_by_user and not was_suspending
    rest = dataclasses.replace(
        given_up,
        actions=(*actions, *given_up.actions),
        again_at=now + _LOOK_AGAIN_S,
        irrevocable=given_up.irrevocable or lost_quota,
    )
    return _write(observed, status, outcome, rest, now=now)


def _given_up(observed: Observed, *, now: float) -> Plan:
    """Return the deletions by force of what goes on nodes that do not answer, and when the next one is due."""
    forced = failure.forced_deletions(observed.pods, now=now)
    return Plan(actions=forced, again_at=failure.next_loss_at(observed.pods, now=now), irrevocable=bool(forced))


def _trainer_ended(observed: Observed, status: JobStatus, *, now: float) -> Plan:
    """Return a plan that only records how the trainer ended by itself, before anything else is stopped."""
    step = trainer.next_step(observed, status, now=now)
    outcome = _run_outcome(step, suspending="" if step.complete or step.failed else "SuspendRequested")
    base = Plan(again_at=now if step.again_at is None else step.again_at, irrevocable=step.irrevocable)
    number = attempts.current(status, {})
    status = _ended(step, now=now) if step.complete or step.failed else _without_later(step.status, number)
    return _write(observed, status, outcome, base, now=now)


def _without_later(status: JobStatus, number: int) -> JobStatus:
    """Return the status without an attempt that a job on its way to Suspended does not begin."""
    trainer_status = status.trainer
    if trainer_status is None:
        return status
    earlier = tuple(attempt for attempt in trainer_status.attempts if attempt.number <= number)
    return status.model_copy(
        update={"attempt": number, "trainer": trainer_status.model_copy(update={"attempts": earlier})}
    )


def _run(observed: Observed, desired: DesiredObjects, *, now: float) -> Plan:
    status = observed.status
    if _is_stopped(observed):
        # A segment begins: its deadlines count from times of its own, and its attempts from the next one.
        first = attempts.current(status, observed.trainer_jobs()) + 1
        reset = {"start_time": None, "scheduled_time": None, "first_step_time": None, "first_attempt": first}
        status = status.model_copy(update=reset)
    status = _shown(observed, _placed(observed, _followed(observed, status, now=now)), now=now)
    verdict = deadlines.check_deadlines(observed, status, now=now)
    if verdict.reason:
        return _fail(observed, status, verdict.reason, verdict.message, now=now)
    refusing = failure.misconfigured(observed.pods)
    if refusing is not None:
        message = f"{refusing.name} refuses its configuration, exit code {refusing.last_exit_code}"
        return _fail(observed, status, attempts.CONFIGURATION_ERROR, message, now=now)
    if observed.report is not None and observed.report.run.phase is enums.Phase.FAILED:
        return _fail(observed, status, attempts.CONFIGURATION_ERROR, observed.report.run.failure, now=now)
    step = trainer.next_step(observed, status, now=now)
    # The end is written before anything is cleaned up: the next pass starts from this record.
    if step.complete or step.failed:
        return _write(
            observed, _ended(step, now=now), _run_outcome(step), Plan(again_at=now, irrevocable=True), now=now
        )
    stall = stalling.check_progress(observed, step.status, withheld=verdict.withheld, now=now)
    if stall.fails and stall.diagnosis is not None:
        message = f"{stall.diagnosis.reason}: {stall.diagnosis.message}"
        return _fail(observed, stall.status, "StallTimeout", message, now=now)
    given_up = _given_up(observed, now=now)
    outdated = trainer.outdated_jobs(observed, step.status)
    is_running = conditions.statuses(observed.status.conditions).get(Type.RUNNING) == "True"
    reports = answers.while_running(observed, is_running=is_running, now=now)
    children = _children(observed, desired, step, now)
    # The next attempt does not wait for the last one's Job, whose pods have ended, to be cleared away.
    actions = (*step.deletes, *stall.deletes, *given_up.actions, *children, *outdated, *reports)
    again_at = earliest(
        step.again_at,
        stall.again_at,
        verdict.again_at,
        given_up.again_at,
        now + _LACKS_S if observed.short else None,
    )
    irrevocable = step.irrevocable or bool(stall.deletes) or given_up.irrevocable
    base = Plan(actions=actions, again_at=again_at, irrevocable=irrevocable)
    outcome = dataclasses.replace(
        _run_outcome(step),
        resumed=_was_suspended(observed),
        not_admitted="; ".join(desired.problems),
        stalled=stall.diagnosis.reason if stall.diagnosis else "",
        stalled_message=stall.diagnosis.message if stall.diagnosis else "",
    )
    return _write(observed, stall.status, outcome, base, now=now)


def _is_stopped(observed: Observed) -> bool:
    statuses = conditions.statuses(observed.status.conditions)
    return "True" in (statuses.get(Type.SUSPENDED), statuses.get(Type.SUSPENDING))


def _was_suspended(observed: Observed) -> bool:
    return _is_stopped(observed) or conditions.reasons(observed.status.conditions).get(Type.SUSPENDED) == "Resumed"


def _run_outcome(step: trainer.TrainerStep, *, suspending: str = "") -> conditions.RunOutcome:
    return conditions.RunOutcome(
        suspending=suspending,
        complete=step.complete,
        failed=step.failed,
        failed_message=step.message,
        backing_off=step.backing_off,
    )


def _ended(step: trainer.TrainerStep, *, now: float) -> JobStatus:
    return step.status.model_copy(update={"completion_time": clock.to_timestamp(now)})


def _fail(observed: Observed, status: JobStatus, reason: str, message: str, *, now: float) -> Plan:
    attempt = attempts.record(status, attempts.current(status, {}))
    if attempt is not None and attempt.end is None:
        closed = attempts.closed(attempt, attempts.requested(reason), step=status.step, now=now)
        status = attempts.with_record(status, closed)
    status = status.model_copy(update={"completion_time": clock.to_timestamp(now)})
    outcome = conditions.RunOutcome(failed=reason, failed_message=message)
    return _write(observed, status, outcome, Plan(again_at=now, irrevocable=True), now=now)


def _children(observed: Observed, desired: DesiredObjects, step: trainer.TrainerStep, now: float) -> Iterable[Action]:
    """Yield what makes the children what they should be, and the deletions of what is not wanted any more."""
    if desired.unchanged or (desired.problems and not desired.first):
        return
    workloads = desired.workloads(attempts.current(step.status, {}))
    refs = {ref_of(manifest) for manifest in (*desired.first, *workloads)}
    admitted = observed.quota.workload if observed.quota is not None else None
    yield from suspend.unwanted(observed, refs | ({admitted.ref} if admitted is not None else set()))
    # `first` has policies, accounts and configs: what guards pods is applied before what makes them.
    for manifest in (*desired.first, *workloads):
        ref = ref_of(manifest)
        if ref.kind == TRAINER_JOB:
            yield from _trainer_job(observed, manifest, refs, step)
        else:
            yield from _apply(observed, manifest, refs, now=now)


def _trainer_job(
    observed: Observed, manifest: Manifest, desired: Set[Ref], step: trainer.TrainerStep
) -> Iterable[Action]:
    """Yield the Job of an attempt if it has to be made: between two attempts there is none, and one that runs is never
    changed, but for the labels by which it is found.
    """
    child = observed.children.get(ref_of(manifest))
    if child is None:
        # A run that has begun is not held up: what guards its pods was there when they were first made.
        needs = _guards(manifest, desired) if step.attempt == 1 else ()
        if step.attempt is not None:
            yield Apply(manifest=manifest, needs=needs)
    elif not child.deleting and not drift.covers(drift.labels(child.manifest), drift.labels(manifest)):
        yield Annotate(ref=child.ref, uid=child.uid, labels=drift.labels(manifest))


def _guards(manifest: Manifest, desired: Set[Ref]) -> tuple[Ref, ...]:
    """Return what must be there before pods of a workload are, of what the job wants: the policy of its role, the
    account without rights, the config. Another's object of such a name is none of these.
    """
    labels = drift.labels(manifest)
    job, role = labels.get("rljob.dev/job", ""), labels.get("rljob.dev/role", "")
    role_object = f"{job}-{role}"
    guards = (
        Ref("NetworkPolicy", role_object),
        Ref("ServiceAccount", role_object),
        Ref("ConfigMap", f"{job}-config"),
        *(Ref(kind, ref_of(manifest).name) for kind in suspend.POD_GROUPS),
    )
    return tuple(guard for guard in guards if guard in desired)


def _apply(observed: Observed, manifest: Manifest, desired: Set[Ref], *, now: float) -> Iterable[Action]:
    ref = ref_of(manifest)
    child = observed.children.get(ref)
    if child is None:
        yield Apply(manifest=manifest, needs=_guards(manifest, desired) if ref.kind in POD_MAKERS else ())
        return
    # The controller that lowers the count looks at marks on pods: they are set, and seen, before it is told to.
    if child.role is enums.Role.ROLLOUT:
        smaller = scale_down.plan_scale_down(
            observed, num_set=child.wanted_replicas, num_wanted=autoscaling.effective_replicas(observed.job.spec)
        )
        yield from smaller.marks
        if smaller.waits:
            return
    # A claim stays as it was made: its owner may have expanded it, and nothing else of it can change.
    if child.deleting or ref.kind == CLAIM:
        return
    due_at = drift.due_at(child.manifest, manifest, observed.written.get(child.uid), now=now)
    if due_at is not None:
        yield Apply(manifest=manifest, uid=child.uid, due_at=due_at)


def _followed(observed: Observed, status: JobStatus, *, now: float) -> JobStatus:
    """Return the status with the segment's times and the coordinator's numbers."""
    if status.start_time is None and observed.pods:
        started = clock.to_timestamp(min(pod.created_at for pod in observed.pods))
        status = status.model_copy(update={"start_time": started})
    return reporting.with_report(status, observed.report, started_at=clock.to_seconds(status.start_time), now=now)


def _placed(observed: Observed, status: JobStatus) -> JobStatus:
    """Return the status with when all pods had a node, until the first step: from then on nothing counts from it."""
    if status.first_step_time is not None:
        return status
    placed = scheduling.placed_at(observed.job.spec, observed.pods, attempt=status.attempt)
    return status.model_copy(update={"scheduled_time": None if placed is None else clock.to_timestamp(placed)})


def _shown(observed: Observed, status: JobStatus, *, now: float) -> JobStatus:
    rows, active = [], not observed.job.spec.suspend
    for role in suites.roles(observed.job.spec):
        pods = observed.pods_of(role)
        desired = scheduling.wanted_pods(observed.job.spec, role) if active else 0
        restarts = sum(pod.restarts for pod in pods)
        rows.append(
            RoleStatus(name=str(role), desired=desired, ready=sum(pod.ready for pod in pods), restarts=restarts)
        )
    rollout = next(row for row in rows if row.name == enums.Role.ROLLOUT)
    status = reporting.with_scaling(status, observed.status, to=rollout.desired, now=now)
    shown = RolloutStatus.model_validate(
        {
            # As a Deployment counts: an autoscaler that saw pods on their way out would scale by them.
            "replicas": sum(not (pod.deleting or pod.is_terminal) for pod in observed.pods_of(enums.Role.ROLLOUT)),
            "selector": f"rljob.dev/uid={observed.job.metadata.uid},rljob.dev/role={enums.Role.ROLLOUT}",
            "ready": f"{rollout.ready}/{rollout.desired}",
            "onLatest": reporting.on_latest(observed.status, observed.report),
        }
    )
    images = tuple(ImageStatus(name=str(role), image=image) for role, image in sorted(observed.images.items()))
    changes: dict[str, object] = {"roles": tuple(rows), "rollout": shown, "images": images, "stalled": None}
    changes["runtime"] = reporting.runtime(observed.runtime)
    verdict = conditions.isolation_verdict(observed)
    if verdict is not None:
        changes["isolation"] = tuple(LayerStatus(name=name, state=state) for name, state in verdict.layers.items())
    return status.model_copy(update=changes)


def _write(observed: Observed, status: JobStatus, outcome: conditions.RunOutcome, rest: Plan, *, now: float) -> Plan:
    """Return what of `rest` is due, with the status before it, if that differs from what is written."""
    rest = refusals.without_refused(rest, observed, now=now)
    status = retry.acknowledged(status, observed.job.spec, failed=bool(outcome.failed))
    outcome = dataclasses.replace(outcome, refused=refusals.shown(rest.refused, now=now))
    full = conditions.with_conditions(observed, status, outcome, now=now)
    # What was used changes all the time: it is written with what changes otherwise, and when a pod ends, which may go.
    if full == observed.status:
        return rest
    run = None if observed.report is None else observed.report.run
    used = usage.usage(observed.status.usage, observed.pods, run, now=now)
    full = full.model_copy(update={"usage": used})
    return dataclasses.replace(rest, actions=(StatusWrite(status=full), *rest.actions))
