"""The trainer's attempts: what the records in status and the Jobs that exist lead to (docs/design/operator.md#s-9-2 to
#s-9-8).

The record is history, so it decides: a number is written before its Job is made, the Job's uid after that, its end
before the Job is deleted. Anyone who starts in the middle finds out from these three where it is.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from rljob_api import enums, lifecycle
from rljob_api.manifest.lifecycle import FailurePolicySpec
from rljob_api.manifest.status import AttemptStatus, JobStatus, RestartsStatus, TrainerStatus
from rljob_operator import clock
from rljob_operator.model import Child, Pod

_MOST_RECORDS = 10
FAILED, REQUESTED, SUCCEEDED = "failed", "requested", "succeeded"
SUSPENDED = "SuspendRequested"
NODE_LOST, STOPPED_ON_REQUEST = "NodeLost", "StoppedOnRequest"
CONFIGURATION_ERROR, FAIL_JOB_RULE = "ConfigurationError", "FailJobRule"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an attempt ended. `fatal`: the reason of Failed if the run ends with it. `counts`: in the budget."""

    outcome: str
    reason: str
    failure_class: lifecycle.FailureClass
    exit_code: int | None = None
    fatal: str = ""
    counts: bool = True


def current(status: JobStatus, jobs: Mapping[int, Child]) -> int:
    """Return the number of the newest attempt, 0 before the first."""
    return max(status.attempt or 0, *jobs, 0) if jobs else status.attempt or 0


def first_of_segment(status: JobStatus) -> int:
    """Return the number of the first attempt since the run was started, or resumed last."""
    if status.first_attempt is not None:
        return status.first_attempt
    # Written by an operator that did not know the field.
    records = status.trainer.attempts if status.trainer else ()
    return max((record.number for record in records if record.reason == SUSPENDED), default=0) + 1


def record(status: JobStatus, number: int) -> AttemptStatus | None:
    records = status.trainer.attempts if status.trainer else ()
    return next((attempt for attempt in records if attempt.number == number), None)


def is_open(attempt: AttemptStatus | None) -> bool:
    """Return whether an attempt's end is not written yet."""
    return attempt is not None and attempt.end is None


def with_record(status: JobStatus, attempt: AttemptStatus) -> JobStatus:
    """Return the status with an attempt's record put in or replaced, the last ten kept, and its number as current."""
    records = status.trainer.attempts if status.trainer else ()
    others = [each for each in records if each.number != attempt.number]
    newest = tuple(sorted([*others, attempt], key=lambda each: each.number)[-_MOST_RECORDS:])
    number = max(status.attempt or 0, attempt.number)
    return status.model_copy(update={"attempt": number, "trainer": TrainerStatus(attempts=newest)})


def started(number: int, *, now: float) -> AttemptStatus:
    return AttemptStatus(number=number, start=clock.to_timestamp(now))


def closed(attempt: AttemptStatus, ending: Ending, *, step: int | None, now: float) -> AttemptStatus:
    """Return the record of an attempt that ended after `step` finished steps of the run."""
    changes = {
        "end": clock.to_timestamp(now),
        "outcome": ending.outcome,
        "reason": ending.reason[:63],
        "class_": str(ending.failure_class),
        "exit_code": ending.exit_code,
        "step": step,
    }
    return attempt.model_copy(update=changes)


def counted(status: JobStatus, ending: Ending) -> JobStatus:
    """Return the status with a failure counted in its class; endings that were asked for count nowhere."""
    if ending.outcome != FAILED or not ending.counts:
        return status
    counts = status.restarts or RestartsStatus()
    is_infra = ending.failure_class is lifecycle.FailureClass.INFRASTRUCTURE
    infrastructure, application = counts.infrastructure + is_infra, counts.application + (not is_infra)
    restarts = RestartsStatus(total=counts.total + 1, application=application, infrastructure=infrastructure)
    return status.model_copy(update={"restarts": restarts})


def ending_of(pods: Sequence[Pod], *, policy: FailurePolicySpec, fruitless: int) -> Ending:
    """Return how a failed attempt ended. pods: of the attempt. The pod that failed first speaks for it.

    fruitless: attempts in a row, this one included, without a step. No pod left: someone took them away.
    """
    return _ending(_pod_end(first_failed(pods)), policy=policy, fruitless=fruitless)


def ending_of_lost(pod: Pod, *, policy: FailurePolicySpec, fruitless: int) -> Ending:
    """Return how an attempt ended one of whose pods is on a node that does not answer."""
    end = dataclasses.replace(_pod_end(pod), reason=NODE_LOST, exit_code=None, deleted_by_others=True, node_ready=False)
    return _ending(end, policy=policy, fruitless=fruitless)


def _ending(end: lifecycle.Exit, *, policy: FailurePolicySpec, fruitless: int) -> Ending:
    failure_class = lifecycle.classify(end, attempts_without_step=fruitless)
    rule = lifecycle.matching_rule(end, policy.rules)
    reason = end.container_reason or end.reason or "Error"
    ending = Ending(outcome=FAILED, reason=reason, failure_class=failure_class, exit_code=end.exit_code)
    if rule is not None and rule.action == "FailJob":
        return dataclasses.replace(ending, fatal=FAIL_JOB_RULE)
    if rule is not None:
        return dataclasses.replace(ending, counts=rule.action == "Restart")
    if failure_class is lifecycle.FailureClass.CONFIGURATION:
        return dataclasses.replace(ending, fatal=CONFIGURATION_ERROR)
    if failure_class is lifecycle.FailureClass.REQUESTED:
        # A kubelet calls every exit code but 0 an Error.
        return dataclasses.replace(ending, outcome=REQUESTED, reason=STOPPED_ON_REQUEST)
    return ending


def lost() -> Ending:
    """Return the ending of an attempt whose Job was taken away by another hand."""
    return Ending(outcome=FAILED, reason="JobLost", failure_class=lifecycle.FailureClass.INFRASTRUCTURE)


def requested(reason: str) -> Ending:
    """Return the ending of an attempt that we stop."""
    return Ending(outcome=REQUESTED, reason=reason, failure_class=lifecycle.FailureClass.REQUESTED)


def first_failed(pods: Sequence[Pod]) -> Pod | None:
    """Return the pod that failed first: the others failed for want of it. None if none is left."""
    failed = [pod for pod in pods if pod.phase == "Failed" or pod.exit_code not in (None, 0)]
    return min(failed, key=lambda pod: (pod.finished_at, pod.name), default=None)


def _pod_end(pod: Pod | None) -> lifecycle.Exit:
    if pod is None:
        return lifecycle.Exit(role=enums.Role.TRAINER, exit_code=None, reason="PodLost", deleted_by_others=True)
    return lifecycle.Exit(
        role=pod.role,
        exit_code=pod.exit_code,
        reason=pod.reason,
        container_reason=pod.container_reason,
        conditions=pod.conditions,
        # A container that was killed without having failed by itself was taken away with its pod.
        deleted_by_others=pod.deleting and pod.exit_code is None,
    )


def num_fruitless(status: JobStatus, *, step: int | None) -> int:
    """Return how many attempts in a row did not get beyond the one before, the one that now ends at `step` included."""
    records = status.trainer.attempts if status.trainer else ()
    ended = sorted((record for record in records if record.outcome == FAILED), key=lambda record: record.number)
    steps = [0, *(record.step or 0 for record in ended), step or 0]
    count = 0
    for before, after in reversed(list(itertools.pairwise(steps))):
        if after > before:
            break
        count += 1
    return count


def next_start(status: JobStatus) -> float:
    """Return when the next attempt may start, in unix seconds, after the last one ended.

    The wait doubles with every failure since the last checkpoint; after a stop that we asked for there is none.
    """
    records = status.trainer.attempts if status.trainer else ()
    last = max(records, key=lambda record: record.number, default=None)
    if last is None or last.outcome == SUCCEEDED or _was_asked_for(last):
        return 0.0
    checkpoint = clock.to_seconds(status.last_checkpoint.time) if status.last_checkpoint else None
    failures = [
        record
        for record in records
        if record.outcome == FAILED and (clock.to_seconds(record.end) or 0.0) > (checkpoint or 0.0)
    ]
    return (clock.to_seconds(last.end) or 0.0) + lifecycle.backoff_s(max(1, len(failures)))


def _was_asked_for(attempt: AttemptStatus) -> bool:
    # A pod that stopped on its own account (a drained node) waits: nothing else bounds how often that happens.
    return attempt.outcome == REQUESTED and attempt.exit_code is None
