"""Which runs end because their time is over, and what has to be seen before that is said. Pure.

Rules: docs/design/operator.md#s-8-7, #s-8-8.

An end is never taken back, and the operator may have been away or cut off while the run continued. So a deadline only
says that it is time to look:

    its time is over --> the coordinator says, after that time, that no step was finished --> Failed
                     --> API objects prove that none could be: a rank never began         --> Failed
                     --> the coordinator does not answer                                  --> Stalled, asked further
What the operator has not seen it does not judge.
"""

import dataclasses
from collections.abc import Iterator, Sequence

from rljob_api import enums, lifecycle, suites
from rljob_api.conditions import ConditionType as Type
from rljob_api.manifest.status import JobStatus
from rljob_api.waiting import Diagnosis, unreachable
from rljob_operator import clock
from rljob_operator.model import Observed, Pod, earliest
from rljob_operator.policies import attempts, scheduling

_LOOK_AGAIN_S = 5.0
# How long a coordinator is asked in vain before the trainer's Job alone shows whether the run has finished
# (docs/design/operator.md#s-8-9).
ASK_S = 60.0
_MOST_NAMED = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """reason, message: of Failed, empty for a run that continues. withheld: why one whose time is over is not ended.

    again_at: when to look again, in unix seconds.
    """

    reason: str = ""
    message: str = ""
    withheld: Diagnosis | None = None
    again_at: float | None = None


def check_deadlines(observed: Observed, status: JobStatus, *, now: float) -> Verdict:
    """Return whether the run ends now for its time; `status` has what the coordinator said last."""
    job = observed.trainer_jobs().get(attempts.current(status, {}))
    if job is not None and job.ended == "Complete":
        return Verdict()  # However long it took, it has finished: the end of its trainer decides.
    starts, runs = _of_start(observed, status, now=now), _of_whole(observed, status, now=now)
    if starts.reason or runs.reason:
        return starts if starts.reason else runs
    return Verdict(withheld=starts.withheld or runs.withheld, again_at=earliest(starts.again_at, runs.again_at))


def _of_start(observed: Observed, status: JobStatus, *, now: float) -> Verdict:
    spec = observed.job.spec
    if status.first_step_time is not None:
        return Verdict()
    placed = scheduling.placed_at(spec, observed.pods, attempt=status.attempt)
    if placed is not None:
        ends = lifecycle.deadline(placed, spec.startup_deadline_seconds)
        failure = lifecycle.startup_exceeded(spec.startup_deadline_seconds)
    else:
        # Pods may wait for nodes as long as the manifest says, without end where it does not.
        limit_s = spec.scheduling_deadline_seconds
        ends = lifecycle.deadline(_waiting_since(observed, status), limit_s)
        failure = lifecycle.scheduling_exceeded(limit_s or 0)
    if ends is None or not lifecycle.is_over(ends, now):
        return Verdict(again_at=ends)
    if _says_unfinished(observed, since=ends) or _never_ran(observed, status):
        return Verdict(reason=failure.reason, message=f"{failure.message}; {waited_for(observed, now=now)}")
    return _withheld(observed, now=now)


def _of_whole(observed: Observed, status: JobStatus, *, now: float) -> Verdict:
    limit_s, start = observed.job.spec.active_deadline_seconds, clock.to_seconds(status.start_time)
    ends = lifecycle.deadline(start, limit_s)
    if ends is None or not lifecycle.is_over(ends, now):
        return Verdict(again_at=ends)
    # All that a coordinator could say against it is that the run has finished, and then its trainer's Job ends too.
    asked_in_vain = observed.silent_since is not None and now >= observed.silent_since + ASK_S
    if _says_unfinished(observed, since=ends) or asked_in_vain or not observed.pods_of(enums.Role.COORDINATOR):
        failure = lifecycle.active_exceeded(limit_s or 0)
        return Verdict(reason=failure.reason, message=failure.message)
    return _withheld(observed, now=now)


def _withheld(observed: Observed, *, now: float) -> Verdict:
    if observed.silent_since is None:
        return Verdict(again_at=now + _LOOK_AGAIN_S)
    # Its first word makes the job due at once.
    return Verdict(withheld=unreachable(since=observed.silent_since), again_at=now + ASK_S)


def _says_unfinished(observed: Observed, *, since: float) -> bool:
    """Return whether the coordinator was heard at `since` or later and does not say that the run has finished."""
    report = observed.report
    return report is not None and report.read_at >= since and report.run.phase is not enums.Phase.FINISHED


def _never_ran(observed: Observed, status: JobStatus) -> bool:
    """Return whether no step can have been finished in this segment, by what was read of its pods.

    A step needs every rank of the trainer, and a Job makes each of its pods once; in a later attempt an earlier one may
    have finished steps. A coordinator's pod that never ran proves it where it is older than the last rank's begin.
    """
    number = attempts.current(status, {})
    job = observed.trainer_jobs().get(number)
    if job is None or job.ended or job.deleting or number != attempts.first_of_segment(status):
        return False
    ranks = [pod for pod in observed.pods_of(enums.Role.TRAINER, number) if not pod.never_ran]
    if len(ranks) < observed.job.spec.trainer.nodes:
        return True
    coordinators = observed.pods_of(enums.Role.COORDINATOR)
    complete_at = max(pod.started_at for pod in ranks)
    return bool(coordinators) and all(pod.never_ran and pod.created_at < complete_at for pod in coordinators)


def _waiting_since(observed: Observed, status: JobStatus) -> float | None:
    """Return since when a pod waits for its node, or to be made; None where none does.

    A pod that had its node and ended, or goes, waited for none: it is replaced in its turn, and only from when one is
    known to be lacking (`PodsScheduled` is False) does the job wait.
    """
    waiting = [pod.created_at for pod in observed.pods if not pod.has_node and not pod.deleting]
    if waiting:
        return min(waiting)
    attempt = attempts.record(status, attempts.current(status, {}))
    if attempt is None or attempt.end is not None:
        return None
    scheduled = next((condition for condition in status.conditions if condition.type == Type.PODS_SCHEDULED), None)
    if scheduled is not None and scheduled.status == "True":
        return None
    # The condition is False while a job is suspended too, and its next attempt begins later.
    since = 0.0 if scheduled is None else clock.to_seconds(scheduled.last_transition_time) or 0.0
    return max(clock.to_seconds(attempt.start) or 0.0, since)


def waited_for(observed: Observed, *, now: float) -> str:
    """Return who was not ready: what could not begin, and every other pod and role that was not there to work; where
    all were, what the coordinator says of the run. now: unix seconds.
    """
    obstacle = scheduling.obstacle(observed, drain_s=observed.job.spec.rollout.drain_seconds, now=now)
    unready = list(
        _unready(observed.pods, suites.roles(observed.job.spec), except_pod="" if obstacle is None else obstacle.pod)
    )
    sentences = [] if obstacle is None else [f"{obstacle.reason}: {obstacle.message}"]
    if unready:
        more = len(unready) - _MOST_NAMED
        sentences.append(f"not ready: {', '.join(unready[:_MOST_NAMED])}{f' and {more} more' if more > 0 else ''}")
    return "; ".join(sentences or ["every pod was ready", *_of_run(observed)])


def _of_run(observed: Observed) -> Iterator[str]:
    """Yield what the coordinator says of a run whose pods were all ready."""
    run = observed.hears
    if run is None:
        return
    yield f"the coordinator says {run.phase}{f' ({run.evaluating})' if run.evaluating else ''}"
    for wait in run.waiting[:_MOST_NAMED]:
        yield f"{wait.pod or wait.role} waits for {wait.what}"


def _unready(pods: Sequence[Pod], roles: Sequence[enums.Role], *, except_pod: str) -> Iterator[str]:
    for role in roles:
        pods_of_role = sorted(
            (pod for pod in pods if pod.role is role and not pod.is_terminal), key=lambda pod: pod.name
        )
        if not pods_of_role:
            yield f"{role}, which has no pod"
        for pod in pods_of_role:
            if not pod.ready and pod.name != except_pod:
                yield f"{pod.name} ({pod.waiting_reason})" if pod.waiting_reason else pod.name
