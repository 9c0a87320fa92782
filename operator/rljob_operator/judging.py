"""Which runs end because their time is over, and what has to be seen before that is said. Pure (8.7, 8.8).

An end is never taken back, and the operator may have been away or cut off while the run went on. So a deadline says no
more than that it is time to look:

    its time is over --> the coordinator says, after that time, that no step was finished --> Failed
                     --> API objects prove that none could be: a rank never began         --> Failed
                     --> the coordinator does not answer                                  --> Stalled, asked further
What the operator has not seen it does not judge.
"""

import dataclasses

from rljob_api import names
from rljob_api.conditions import ConditionType as Type
from rljob_api.job_status import JobStatus
from rljob_api.waiting import Diagnosis, unreachable
from rljob_operator import conditions, times
from rljob_operator.model import Observed, earliest
from rljob_operator.policies import attempts, deadlines, unready

_LOOK_AGAIN_S = 5.0
# How long a coordinator is asked in vain before the trainer's Job alone tells whether the run has finished (8.9).
ASK_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """reason, message: of Failed, empty for a run that goes on. withheld: why one whose time is over is not ended.

    again_at: when to look again, in unix seconds.
    """

    reason: str = ""
    message: str = ""
    withheld: Diagnosis | None = None
    again_at: float | None = None


def judge(seen: Observed, status: JobStatus, *, now: float) -> Verdict:
    """Return whether the run ends now for its time; `status` has what the coordinator said last."""
    job = seen.trainer_jobs().get(attempts.current(status, {}))
    if job is not None and job.ended == "Complete":
        return Verdict()  # However long it took, it has finished: the end of its trainer decides.
    starts, runs = _of_start(seen, status, now=now), _of_whole(seen, status, now=now)
    if starts.reason or runs.reason:
        return starts if starts.reason else runs
    return Verdict(withheld=starts.withheld or runs.withheld, again_at=earliest(starts.again_at, runs.again_at))


def _of_start(seen: Observed, status: JobStatus, *, now: float) -> Verdict:
    spec = seen.job.spec
    if status.first_step_time is not None:
        return Verdict()
    placed = conditions.placed_at(spec, seen.pods, attempt=status.attempt)
    if placed is not None:
        ends = deadlines.startup_ends(placed_at=placed, limit_s=spec.startup_deadline_seconds)
        limit = f"no step was finished within spec.startupDeadlineSeconds = {spec.startup_deadline_seconds}"
        reason = "StartupDeadlineExceeded"
    else:
        since = _waiting_since(seen, status)
        ends = deadlines.scheduling_ends(waiting_since=since, limit_s=spec.scheduling_deadline_seconds)
        limit = f"pods had no node after spec.schedulingDeadlineSeconds = {spec.scheduling_deadline_seconds}"
        reason = "SchedulingDeadlineExceeded"
    if ends is None or not deadlines.is_over(ends, now):
        return Verdict(again_at=ends)
    if _says_unfinished(seen, since=ends) or _never_ran(seen, status):
        return Verdict(reason=reason, message=f"{limit}; {unready.waited_for(seen, now=now)}")
    return _withheld(seen, now=now)


def _of_whole(seen: Observed, status: JobStatus, *, now: float) -> Verdict:
    limit_s, start = seen.job.spec.active_deadline_seconds, times.to_seconds(status.start_time)
    ends = deadlines.active_ends(start_time=start, limit_s=limit_s)
    if ends is None or not deadlines.is_over(ends, now):
        return Verdict(again_at=ends)
    # All that a coordinator could say against it is that the run has finished, and then its trainer's Job ends too.
    asked_in_vain = seen.silent_since is not None and now >= seen.silent_since + ASK_S
    if _says_unfinished(seen, since=ends) or asked_in_vain or not seen.pods_of(names.Role.COORDINATOR):
        message = f"the run took longer than spec.activeDeadlineSeconds = {limit_s}"
        return Verdict(reason="ActiveDeadlineExceeded", message=message)
    return _withheld(seen, now=now)


def _withheld(seen: Observed, *, now: float) -> Verdict:
    if seen.silent_since is None:
        return Verdict(again_at=now + _LOOK_AGAIN_S)
    # Its first word makes the job due at once.
    return Verdict(withheld=unreachable(since=seen.silent_since), again_at=now + ASK_S)


def _says_unfinished(seen: Observed, *, since: float) -> bool:
    """Return whether the coordinator was heard at `since` or later and does not say that the run has finished."""
    report = seen.report
    return report is not None and report.read_at >= since and report.run.phase is not names.Phase.FINISHED


def _never_ran(seen: Observed, status: JobStatus) -> bool:
    """Return whether no step can have been finished in this segment, by what was read of its pods.

    A step needs every rank of the trainer, and a Job makes each of its pods once; in a later attempt an earlier one may
    have finished steps. A coordinator's pod that never ran proves it where it is older than the last rank's begin.
    """
    number = attempts.current(status, {})
    job = seen.trainer_jobs().get(number)
    if job is None or job.ended or job.deleting or number != attempts.first_of_segment(status):
        return False
    ranks = [pod for pod in seen.pods_of(names.Role.TRAINER, number) if not pod.never_ran]
    if len(ranks) < seen.job.spec.trainer.nodes:
        return True
    coordinators = seen.pods_of(names.Role.COORDINATOR)
    complete_at = max(pod.started_at for pod in ranks)
    return bool(coordinators) and all(pod.never_ran and pod.created_at < complete_at for pod in coordinators)


def _waiting_since(seen: Observed, status: JobStatus) -> float | None:
    """Return since when a pod waits for its node, or to be made; None where none does.

    A pod that had its node and ended, or goes, waited for none: it is replaced in its turn, and only from when one is
    known to be lacking (`PodsScheduled` is False) does the job wait.
    """
    waiting = [pod.created_at for pod in seen.pods if not pod.has_node and not pod.deleting]
    if waiting:
        return min(waiting)
    known = attempts.record(status, attempts.current(status, {}))
    if known is None or known.end is not None:
        return None
    said = next((one for one in status.conditions if one.type == Type.PODS_SCHEDULED), None)
    if said is not None and said.status == "True":
        return None
    # The condition is False while a job is suspended too, and its next attempt begins later.
    since = 0.0 if said is None else times.to_seconds(said.last_transition_time) or 0.0
    return max(times.to_seconds(known.start) or 0.0, since)
