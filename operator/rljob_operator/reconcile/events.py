"""Events: what a status write changed that a person wants to hear of, reported once a minute at most
(docs/design/operator.md#s-7-9, #s-9-12).
"""

import dataclasses
import datetime
import uuid
from collections.abc import Iterator, Mapping

from rljob_api import enums
from rljob_api.conditions import ConditionType as Type
from rljob_api.manifest.job import RLJob
from rljob_api.manifest.status import AttemptStatus, Condition, JobStatus
from rljob_operator.reconcile.conditions import shorten

CONTROLLER = "rljob.dev/operator"
QUIET_S = 60.0
# Reported when the condition becomes this.
_TOLD: Mapping[Type, tuple[str, str]] = {
    Type.ACCEPTED: ("False", "Warning"),
    Type.SUSPENDED: ("True", "Normal"),
    Type.PODS_SCHEDULED: ("False", "Warning"),
    Type.RUNNING: ("True", "Normal"),
    Type.DEGRADED: ("True", "Warning"),
    Type.STALLED: ("True", "Warning"),
    Type.COMPLETE: ("True", "Normal"),
    Type.FAILED: ("True", "Warning"),
}

# Mirrors of another condition, which has been reported already; pods that are just being made.
_NO_NEWS = frozenset({"Failed", "NotAccepted", "Pending", "Suspended", "Finished"})


@dataclasses.dataclass(frozen=True, slots=True)
class EventDraft:
    """One thing that happened: Normal or Warning, reason, and a sentence."""

    type: str
    reason: str
    note: str


def event_drafts(before: JobStatus, after: JobStatus) -> Iterator[EventDraft]:
    """Yield what changed from one status to the next: conditions, trainer attempts, the number of rollouts."""
    previous = {condition.type: condition for condition in before.conditions}
    for condition in after.conditions:
        yield from _of_condition(previous.get(condition.type), condition)
    ended = {
        attempt.number for attempt in (before.trainer.attempts if before.trainer else ()) if attempt.end is not None
    }
    for attempt in after.trainer.attempts if after.trainer else ():
        if attempt.end is not None and attempt.number not in ended:
            yield _of_attempt(attempt)
    was, now = _rollouts(before), _rollouts(after)
    if was and now and was != now:
        yield EventDraft("Normal", "RolloutScaled", f"rollouts: {was} -> {now}")


def _of_condition(before: Condition | None, now: Condition) -> Iterator[EventDraft]:
    status, kind = _TOLD.get(Type(now.type), ("", ""))
    same = before is not None and (before.status, before.reason) == (now.status, now.reason)
    if now.status == status and not same and now.reason not in _NO_NEWS:
        yield EventDraft(kind, now.reason, f"{now.type}: {now.message or now.reason}")


def _of_attempt(attempt: AttemptStatus) -> EventDraft:
    code = "none" if attempt.exit_code is None else str(attempt.exit_code)
    note = (
        f"trainer attempt {attempt.number} ended ({attempt.class_}): {attempt.reason}, "
        f"exit code {code}, after step {attempt.step or 0}"
    )
    return EventDraft("Warning" if attempt.outcome == "failed" else "Normal", "TrainerAttemptEnded", note)


def _rollouts(status: JobStatus) -> int:
    return next((role.desired for role in status.roles if role.name == enums.Role.ROLLOUT), 0)


def body(job: RLJob, draft: EventDraft, *, instance: str, now: float) -> dict[str, object]:
    metadata = job.metadata
    regarding = {
        "apiVersion": job.api_version,
        "kind": job.kind,
        "name": metadata.name,
        "namespace": metadata.namespace,
        "uid": metadata.uid,
    }
    time = datetime.datetime.fromtimestamp(now, tz=datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata.name}.{uuid.uuid4().hex[:16]}", "namespace": metadata.namespace},
        "eventTime": time,
        "reportingController": CONTROLLER,
        "reportingInstance": instance,
        "action": "Reconcile",
        "type": draft.type,
        "reason": draft.reason,
        "note": shorten(draft.note),
        "regarding": regarding,
    }


class EventRateLimiter:
    """Lets equal news of one job through once a minute; forgets what is older."""

    def __init__(self) -> None:
        self._reported_at: dict[tuple[str, str], float] = {}

    def allow(self, uid: str, draft: EventDraft, *, now: float) -> bool:
        """Return whether this is to be reported; times are monotonic seconds."""
        self._reported_at = {key: at for key, at in self._reported_at.items() if now - at < QUIET_S}
        if (uid, draft.reason) in self._reported_at:
            return False
        self._reported_at[(uid, draft.reason)] = now
        return True
