"""What to stop: the order of a suspension, and the cleanup of a run that is over. Pure.

The pods that are left decide the stage, so an operator that starts in the middle continues in the same direction:
trainer and rollouts first (checkpoint and drain), then verifiers, the coordinator with its ledger last
(docs/design/operator.md#s-8-3).
"""

import dataclasses
import enum
from collections.abc import Collection, Sequence, Set

from rljob_api import enums, lifecycle
from rljob_api.conditions import ConditionType as Type
from rljob_api.manifest.job import JobSpec
from rljob_api.manifest.status import JobStatus
from rljob_operator import clock
from rljob_operator.model import (
    POD,
    POD_GROUP,
    POD_MAKERS,
    RLJOB,
    WORKLOAD,
    Action,
    Delete,
    Observed,
    Plan,
    Ref,
    Scale,
    earliest,
    ref_kind,
)
from rljob_operator.policies import failure
from rljob_operator.queueing import answers
from rljob_operator.resources import gangs

# On top of the drain, for a checkpoint and the ledger's last write.
_GRACE_S = 120.0


class SuspendStage(enum.StrEnum):
    """What is being stopped. The trainer's checkpoint and the rollouts' drain come first, then who serves that drain,
    the ledger last.
    """

    TRAINER_AND_ROLLOUTS = "trainer_and_rollouts"
    VERIFIERS = "verifiers"
    COORDINATOR = "coordinator"
    SUSPENDED = "suspended"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PodsLeft:
    """Pods of the job by role, Terminating ones included."""

    trainer: int
    rollout: int
    verifier: int
    coordinator: int
    judge: int = 0
    environment: int = 0
    agents: int = 0


def stage(left: PodsLeft) -> SuspendStage:
    """Return what to stop now; SUSPENDED only when no pod exists at all."""
    if left.trainer or left.rollout:
        return SuspendStage.TRAINER_AND_ROLLOUTS
    if left.verifier or left.judge or left.environment or left.agents:
        return SuspendStage.VERIFIERS
    return SuspendStage.COORDINATOR if left.coordinator else SuspendStage.SUSPENDED


def is_overdue(*, asked_at: float, drain_s: float, now: float) -> bool:
    """Return whether pods that are left are now deleted with a short grace: drain + 120 s after suspend was asked."""
    return now >= asked_at + drain_s + _GRACE_S


def keeps_stopping(*, suspend: bool, was_suspending: bool, current: SuspendStage) -> bool:
    """Return whether to stop further: a stop that began is completed first, even if suspend is taken back."""
    return current is not SuspendStage.SUSPENDED and (suspend or was_suspending)


_SHORT_GRACE_S = 5
# Kept rollouts and verifiers hold GPUs: this long, for a look at them (docs/design/operator.md#s-8-11).
_KEPT_S = 3600.0
# They protect pods of a run, change their number or place them together: without one they only block.
POD_GROUPS = frozenset(ref_kind(POD_GROUP, version) for version in gangs.API_VERSIONS.values())
_ONLY_WHILE_RUNNING = frozenset({"PodDisruptionBudget", "HorizontalPodAutoscaler", "ScaledObject"}) | POD_GROUPS
# What a manifest can cease to ask for while its job lives.
_ONLY_WHILE_WANTED = _ONLY_WHILE_RUNNING | {"NetworkPolicy", "PodMonitor", WORKLOAD}
_ORDER = {
    SuspendStage.TRAINER_AND_ROLLOUTS: (enums.Role.TRAINER, enums.Role.ROLLOUT),
    SuspendStage.VERIFIERS: (
        enums.Role.VERIFIER,
        enums.Role.JUDGE,
        enums.Role.ENVIRONMENT,
        enums.Role.AGENTS,
    ),
    SuspendStage.COORDINATOR: (enums.Role.COORDINATOR,),
}


def pods_left(observed: Observed, *, now: float) -> PodsLeft:
    """Return what is left to stop by role: pods, and those that a workload is still set to make.

    Pods on nodes that do not answer are deleted by force and hold nothing up.
    """
    live_pods = [pod for pod in observed.pods if not failure.is_lost(pod, now=now)]
    count = {role: sum(pod.role is role for pod in live_pods) for role in enums.Role}
    for child in observed.children.values():
        if child.role is enums.Role.TRAINER and child.attempt:
            count[child.role] += 1
        elif child.role is not None:
            count[child.role] += child.wanted_replicas
    return PodsLeft(
        trainer=count[enums.Role.TRAINER],
        rollout=count[enums.Role.ROLLOUT],
        verifier=count[enums.Role.VERIFIER],
        coordinator=count[enums.Role.COORDINATOR],
        judge=count[enums.Role.JUDGE],
        environment=count[enums.Role.ENVIRONMENT],
        agents=count[enums.Role.AGENTS],
    )


def stop_actions(observed: Observed, stage: SuspendStage, *, asked_at: float, now: float) -> tuple[Action, ...]:
    """Return what to stop in this stage; pods that overstay are deleted."""
    roles = _ORDER.get(stage, ())
    overdue = is_overdue(asked_at=asked_at, drain_s=observed.job.spec.rollout.drain_seconds, now=now)
    late = [pod for role in roles for pod in observed.pods_of(role)] if overdue else []
    return (
        *_budgets(observed),
        *(action for role in roles for action in _stop_role(observed, role)),
        *(Delete(ref=Ref(POD, pod.name), uid=pod.uid, grace_s=_SHORT_GRACE_S) for pod in late if not pod.deleting),
    )


def unwanted(observed: Observed, desired: Collection[Ref]) -> list[Delete]:
    """Return the deletions of what the job does not ask for any more."""
    return [deletion for deletion in _deletions(observed, _ONLY_WHILE_WANTED) if deletion.ref not in desired]


def _budgets(observed: Observed) -> list[Delete]:
    return _deletions(observed, _ONLY_WHILE_RUNNING)


def _deletions(observed: Observed, kinds: Set[str]) -> list[Delete]:
    children = sorted(observed.children.values(), key=lambda child: child.ref)
    return [
        Delete(ref=child.ref, uid=child.uid) for child in children if child.ref.kind in kinds and not child.deleting
    ]


def _stop_role(observed: Observed, role: enums.Role) -> list[Action]:
    children = sorted(
        (child for child in observed.children.values() if child.role is role), key=lambda child: child.ref
    )
    jobs: list[Action] = [
        Delete(ref=child.ref, uid=child.uid) for child in children if child.attempt and not child.deleting
    ]
    return jobs + [
        Scale(ref=child.ref, uid=child.uid, replicas=0)
        for child in children
        if not child.attempt and child.wanted_replicas
    ]


def asked_at(status: JobStatus, *, now: float) -> float:
    """Return when the stop began: when Suspending became True."""
    condition = next(
        (each for each in status.conditions if each.type == Type.SUSPENDING and each.status == "True"), None
    )
    return now if condition is None else clock.to_seconds(condition.last_transition_time) or now


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    actions: list[Action]
    again_at: float | None = None


def cleanup(observed: Observed, *, succeeded: bool, now: float) -> Plan:
    """Return the cleanup of a run that is over, and its deletion when its time has come."""
    completed = clock.to_seconds(observed.status.completion_time)
    spec = observed.job.spec
    ends = lifecycle.deadline(completed, spec.ttl_seconds_after_finished)
    if lifecycle.is_over(ends, now):
        rljob = Ref(RLJOB, observed.job.metadata.name)
        return Plan(actions=(Delete(ref=rljob, uid=observed.job.metadata.uid),), irrevocable=True)
    cleanups = [_clean(observed, role, succeeded=succeeded, completed=completed or now, now=now) for role in enums.Role]
    actions = (*_budgets(observed), *(action for part in cleanups for action in part.actions))
    return Plan(actions=actions, again_at=earliest(ends, *(part.again_at for part in cleanups)))


def _clean(observed: Observed, role: enums.Role, *, succeeded: bool, completed: float, now: float) -> _Kept:
    if _policy(observed.job.spec, role, succeeded=succeeded) == "Delete":
        return _Kept(actions=_delete_role(observed, role))
    if role is enums.Role.TRAINER:
        # What has ended is kept for its logs; what still runs holds a GPU for no one.
        running = [pod for pod in observed.pods_of(role) if not pod.is_terminal and not pod.deleting]
        return _Kept(actions=[Delete(ref=Ref(POD, pod.name), uid=pod.uid) for pod in running])
    # What holds quota is freed for others: objects and volumes are kept, pods are not.
    if answers.holds_quota(observed):
        return _Kept(actions=_stop_role(observed, role))
    if role is enums.Role.COORDINATOR:
        return _Kept(actions=[])
    if now >= completed + _KEPT_S:
        return _Kept(actions=_stop_role(observed, role))
    return _Kept(actions=[], again_at=completed + _KEPT_S if _stop_role(observed, role) else None)


def _policy(spec: JobSpec, role: enums.Role, *, succeeded: bool) -> str:
    policy = spec.cleanup_policy.on_success if succeeded else spec.cleanup_policy.on_failure
    return {
        enums.Role.COORDINATOR: policy.coordinator,
        enums.Role.ROLLOUT: policy.rollout,
        enums.Role.VERIFIER: policy.verifier,
        # Nothing of it is worth a look without its log.
        enums.Role.JUDGE: policy.verifier,
        enums.Role.ENVIRONMENT: policy.verifier,
        # They have no one to ask once rollouts are gone.
        enums.Role.AGENTS: policy.rollout,
        enums.Role.TRAINER: policy.trainer,
    }[role]


def _delete_role(observed: Observed, role: enums.Role) -> list[Action]:
    refs: Sequence[Ref] = sorted(
        child.ref
        for child in observed.children.values()
        if child.role is role and not child.deleting and child.ref.kind in POD_MAKERS
    )
    return [Delete(ref=ref, uid=observed.children[ref].uid) for ref in refs]
