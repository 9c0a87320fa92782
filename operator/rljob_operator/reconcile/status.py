"""A coordinator's report as fields of a status, and when a status is written. Pure; numbers of record, shown on change
(docs/design/operator.md#s-7-1).
"""

import math
from collections.abc import Mapping

from rljob_api import enums, types
from rljob_api.conditions import ConditionType as Type
from rljob_api.manifest.base import Decimal
from rljob_api.manifest.status import (
    CheckpointStatus,
    EvaluationStatus,
    JobStatus,
    PaceStatus,
    RewardStatus,
    RuntimeUseStatus,
    ScalingHistoryStatus,
    ScalingStatus,
    TrajectoriesStatus,
    VersionStatus,
)
from rljob_operator import clock
from rljob_operator.model import Report, RuntimeUse
from rljob_operator.policies import attempts

_DIGITS = 4
_MOST_SUITES = 32
_MOST_CHANGES = 5
_ROLLOUT = "rollout"
# While a job starts, each pod that becomes ready changes a count; a write for each would be most of the writes of its
# life, and no one reads them as fast (docs/design/operator.md#s-17-4).
BETWEEN_COUNTS_S = 2.0


def with_report(status: JobStatus, report: Report | None, *, started_at: float | None, now: float) -> JobStatus:
    """Return the status with the coordinator's numbers.

    started_at: begin of the segment, unix seconds. Its first step is the first that ends in it, not the run's: a
    resumed run starts up again, from the step of its checkpoint, below steps that were finished before it.
    """
    if report is None:
        return status
    run = report.run
    changes: dict[str, object] = {
        "step": run.step,
        "sft_steps": run.sft_steps or None,
        "version": _version(run),
        "trajectories": _trajectories(run),
        "config_generation": run.config_generation or None,
        "evaluation": _evaluations(run),
    }
    stepped_at = None if status.first_step_time or started_at is None else _first_step_at(status, run, now=now)
    if stepped_at is not None and started_at is not None:
        changes["first_step_time"] = clock.to_timestamp(min(now, max(started_at, stepped_at)))
    if run.checkpoint_at:
        uri, time = run.checkpoint_uri[:1024], clock.to_timestamp(run.checkpoint_at)
        changes["last_checkpoint"] = CheckpointStatus(step=run.checkpoint_step, uri=uri, time=time)
    # A diverged run may report what no decimal string can say; it must be looked after all the same.
    if run.reward_mean is not None and math.isfinite(run.reward_mean) and run.step:
        changes["reward"] = RewardStatus(mean=decimal(run.reward_mean), step=run.step)
    # Tokens per second change all the time; a status that followed them would be written all the time.
    if run.step and (status.pace is None or status.pace.step != run.step):
        changes["pace"] = _pace(run)
    return status.model_copy(update=changes)


def with_scaling(status: JobStatus, before: JobStatus, *, to: int, now: float) -> JobStatus:
    """Return the status with a change of the rollouts' number in its history; stopping and starting are none."""
    was = next((row.desired for row in before.roles if row.name == _ROLLOUT), 0)
    if not was or not to or was == to:
        return status
    previous = status.scaling.history if status.scaling else ()
    # Anyone who scaled (a person, an autoscaler) did it there.
    change = {"time": clock.to_timestamp(now), "from": was, "to": to, "signal": "spec.rollout.replicas"}
    history = (*previous, ScalingStatus.model_validate(change))[-_MOST_CHANGES:]
    return status.model_copy(update={"scaling": ScalingHistoryStatus(history=history)})


def on_latest(status: JobStatus, report: Report | None) -> int | None:
    """Return how many rollouts serve the newest version; without a report, what was said last."""
    if report is None:
        return None if status.rollout is None else status.rollout.on_latest
    serving = [pod.serving_version for pod in report.run.pods if pod.role == _ROLLOUT]
    return sum(version == report.run.published_version for version in serving)


def decimal(value: float) -> Decimal:
    """Return a number as a decimal string of four digits behind the point, without zeros at its end.

    Raises ValueError if it is not finite.
    """
    if not math.isfinite(value):
        raise ValueError(f"need a finite number, got {value}")
    text = f"{value:.{_DIGITS}f}".rstrip("0").rstrip(".")
    return Decimal("0" if text in ("-0", "") else text)


def _first_step_at(status: JobStatus, run: types.RunStatus, *, now: float) -> float | None:
    """Return when the segment's first step was finished; None if none is. `now` where that is all that is known.

    The ledger keeps it by attempt, so an operator that was away learns of it later. A ledger that was lost knows of
    none; where an attempt began from a later step than the segment did, steps were finished all the same.
    """
    first = attempts.first_of_segment(status)
    of_segment = [attempt for attempt in run.attempts if attempt.attempt >= first]
    first_steps = [attempt.first_step_at for attempt in of_segment if attempt.first_step_at]
    if first_steps:
        return min(first_steps)
    if of_segment:
        began_from = 0 if first == 1 and of_segment[0].attempt > 1 else of_segment[0].resume_step
        return now if max(attempt.resume_step for attempt in of_segment) > began_from else None
    if run.attempts:
        return None
    # A coordinator that does not report on attempts: from a checkpoint on, steps are this segment's.
    began_from = status.last_checkpoint.step if status.last_checkpoint else 0
    return now if run.step > began_from else None


def _pace(run: types.RunStatus) -> PaceStatus | None:
    """Return what is reported once per step; None where a number is none."""
    numbers = {
        "stepSeconds": run.step_s,
        "tokensPerSecond": run.tokens_per_s,
        "trainerWaitShare": run.trainer_wait_share,
        "rolloutWaitShare": run.rollout_wait_share,
        "rewardDelta": run.reward_delta,
    }
    reported = {name: value for name, value in numbers.items() if value is not None}
    if not all(map(math.isfinite, reported.values())):
        return None
    return PaceStatus.model_validate({"step": run.step, **{name: decimal(value) for name, value in reported.items()}})


def _version(run: types.RunStatus) -> VersionStatus:
    counts = {
        "published": run.published_version,
        "live": run.live_version,
        "oldestServing": run.oldest_serving_version,
        "lag": run.version_lag_steps,
    }
    return VersionStatus.model_validate({key: max(0, value) for key, value in counts.items()})


def _trajectories(run: types.RunStatus) -> TrajectoriesStatus:
    counts = {
        "accepted": run.trajectories.get("accepted", 0),
        "stale": run.trajectories.get("stale", 0),
        "infraFailed": run.trajectories.get("infra_failure", 0),
        "filtered": run.trajectories.get("filtered", 0),
        "tooLong": run.left_out.get(enums.DropReason.TOO_LONG, 0),
        "invalidRecord": run.left_out.get(enums.DropReason.INVALID_RECORD, 0),
        "dumpFailures": run.dump_failures,
    }
    return TrajectoriesStatus.model_validate(counts)


def _evaluations(run: types.RunStatus) -> tuple[EvaluationStatus, ...]:
    """Return the last score of each suite."""
    last: dict[str, types.EvaluationResult] = {}
    for result in sorted(run.evaluations, key=lambda result: result.step):
        if math.isfinite(result.accuracy):
            last[result.suite] = result
    rows = sorted(last.items())[:_MOST_SUITES]
    return tuple(
        EvaluationStatus(suite=name[:63], accuracy=decimal(result.accuracy), step=result.step) for name, result in rows
    )


def runtime(use: RuntimeUse) -> RuntimeUseStatus | None:
    """Return the runtime that a job is resolved with; None for one without."""
    if use.runtime is None:
        return None
    metadata, current = use.runtime.metadata, use.current_generation
    counts = {"generation": metadata.generation} | ({} if current is None else {"currentGeneration": current})
    return RuntimeUseStatus.model_validate({"kind": use.runtime.kind, "name": metadata.name, **counts})


# Statuses by type: "True", "False" or "Unknown"; an optional condition may be absent.
Statuses = Mapping[Type, str]


def is_terminal(statuses: Statuses) -> bool:
    """Return whether the run has ended: Complete or Failed is True, which is never taken back
    (docs/design/operator.md#s-6-3).
    """
    return "True" in (statuses.get(Type.COMPLETE), statuses.get(Type.FAILED))


def summary(statuses: Statuses, reasons: Mapping[Type, str], *, deleting: bool = False) -> str:
    """Return one word for people, the first that fits; display only, nothing decides by it
    (docs/design/operator.md#s-7-3).
    """
    true = {kind for kind, status in statuses.items() if status == "True"}
    restarting = reasons.get(Type.TRAINER_READY) in ("Restarting", "BackingOff") and Type.TRAINER_READY not in true
    words = (
        ("Terminating", deleting),
        ("Succeeded", Type.COMPLETE in true),
        ("Failed", Type.FAILED in true),
        ("Invalid", statuses.get(Type.ACCEPTED) == "False"),
        ("Suspending", Type.SUSPENDING in true),
        ("Suspended", Type.SUSPENDED in true and reasons.get(Type.SUSPENDED) != "WaitingForQuota"),
        ("Queued", statuses.get(Type.QUOTA_RESERVED) == "False"),
        ("Stalled", Type.STALLED in true),
        ("Restarting", restarting or reasons.get(Type.RUNNING) == "Restarting"),
        ("Starting", reasons.get(Type.RUNNING) == "Starting" and Type.ACCEPTED in true),
        ("Degraded", Type.DEGRADED in true),
        ("Running", Type.RUNNING in true),
    )
    return next((word for word, holds in words if holds), "Pending")


def write_wait_s(before: JobStatus, after: JobStatus, *, written_at: float | None, now: float) -> float:
    """Return the seconds that a write of `after` over `before` has to wait; 0 if it is due.

    Decisions are written at once, counts of pods and numbers together (docs/design/operator.md#s-7-5).
    written_at: when this job's status was last written, unix seconds; None if that is not known.
    """
    if written_at is None or _decisions(before) != _decisions(after):
        return 0.0
    # A clock that jumped back must not hold anything up.
    remaining_s = written_at + BETWEEN_COUNTS_S - now
    return remaining_s if 0.0 < remaining_s <= BETWEEN_COUNTS_S else 0.0


def _decisions(status: JobStatus) -> JobStatus:
    """Return the status without what may wait: all that others act on is left, and all history.

    What the next pass can read again is no history yet: times of pods, and the uid of an attempt's Job.
    """
    conditions = tuple(condition.model_copy(update={"reason": "-", "message": ""}) for condition in status.conditions)
    blank = {"conditions": conditions, "reason": None, "roles": (), "rollout": None, "images": ()}
    numbers = {
        "step": None,
        "sft_steps": None,
        "version": None,
        "trajectories": None,
        "reward": None,
        "pace": None,
        "usage": None,
    }
    read_again: dict[str, object] = {"start_time": None, "scheduled_time": None}
    if status.trainer is not None:
        attempts = tuple(attempt.model_copy(update={"uid": None}) for attempt in status.trainer.attempts)
        read_again |= {"trainer": status.trainer.model_copy(update={"attempts": attempts})}
    return status.model_copy(update=blank | numbers | read_again)
