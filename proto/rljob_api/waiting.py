"""Who blocks a run, from what its processes say they wait for: from waiter to awaited until one that waits for
nothing (docs/design/operator.md#s-11). Pure.

The operator adds what the cluster says of pods, the command line what a machine says of processes.
"""

import dataclasses
from collections.abc import Sequence

from rljob_api import enums, types

_APPLYING = frozenset({"FETCHING", "STAGED", "PAUSED", "APPLYING", "VERIFYING"})
# Reasons of the coordinator's own that name the culprit.
_NAMED_CULPRITS = {"LedgerStuck": "LedgerStuck", "FilterStarvation": "AllGroupsFiltered"}
# Labels of a metric that say little in a sentence.
_IN_WORDS = {
    str(enums.WaitReason.STALENESS): "a trainer step (staleness bound)",
    str(enums.WaitReason.NO_PROMPTS): "a prompt to lease",
}
_T, _R = str(enums.Role.TRAINER), str(enums.Role.ROLLOUT)
_V, _C = str(enums.Role.VERIFIER), str(enums.Role.COORDINATOR)
_J, _A, _E = str(enums.Role.JUDGE), str(enums.Role.AGENTS), str(enums.Role.ENVIRONMENT)

_FAILING = {_V: "VerifierFailing", _J: "JudgeUnavailable"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Waiters from the trainer to the end. `culprit` is the awaited role at the end; a cycle has no end."""

    links: tuple[types.Waiting, ...]
    culprit: str
    is_cycle: bool

    def message(self, now: float) -> str:
        """Return the whole chain as one sentence per link, seconds rounded; empty without waits."""
        return "; ".join(sentence(link, now) for link in self.links)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Who holds a run up: role, pod if one is to blame, since when (unix seconds), reason, and the whole chain."""

    reason: str
    role: str
    pod: str = ""
    since: float
    message: str = ""


def diagnose(run: types.RunStatus, *, now: float) -> Diagnosis:
    """Return why a run makes no progress; Unknown without evidence."""
    if run.reason in _NAMED_CULPRITS:
        return Diagnosis(reason=_NAMED_CULPRITS[run.reason], role=_C, since=run.last_progress_at, message=run.reason)
    wait_chain = chain_of(run)
    reason, role = _of_chain(run, wait_chain)
    last = wait_chain.links[-1] if wait_chain.links else None
    pod = last.pod if last is not None and reason == "WaitCycle" else _culprit(run, role)
    since = last.since if last is not None else run.last_progress_at
    return Diagnosis(reason=reason, role=role, pod=pod, since=since, message=wait_chain.message(now))


def unreachable(*, since: float) -> Diagnosis:
    """Return the diagnosis of a coordinator that does not answer: no stall of the data loop is known
    (docs/design/operator.md#s-11-6).
    """
    message = "the coordinator's Status is not answered"
    return Diagnosis(reason="CoordinatorUnreachable", role=_C, since=since, message=message)


def sentence(link: types.Waiting, now: float) -> str:
    """Return who waits for what and for how long, seconds rounded."""
    what = _IN_WORDS.get(link.what, link.what) or link.on_role
    return f"{link.pod or link.role} waits for {what} for {max(0.0, now - link.since):.0f} s"


def chain_of(run: types.RunStatus) -> Chain:
    """Return who waits for whom in a run, from the trainer, or from the rollouts where it waits for nothing."""
    # A trainer that waits for no other may itself be what the rollouts wait for.
    return chain(run.waiting, first_role=_T if any(link.role == _T for link in run.waiting) else _R)


def chain(waiting: Sequence[types.Waiting], *, first_role: str = "trainer") -> Chain:
    """Return who waits for whom, beginning with `first_role`; of a role's waiters the one that waits longest speaks.

    One that waits for a process in the chain already speaks only if no other of its role does: a rollout whose
    groups are at the verifier explains why another gets no group before the trainer has made its step.
    """
    links, role, visited = list[types.Waiting](), first_role, set[str]()
    while role not in visited:
        visited.add(role)
        own = [link for link in waiting if link.role == role]
        if not own:
            return Chain(links=tuple(links), culprit=role, is_cycle=False)
        links.append(min(own, key=lambda link: (link.on_role in visited, link.since, link.pod)))
        role = links[-1].on_role
    return Chain(links=tuple(links), culprit=role, is_cycle=True)


def _of_chain(run: types.RunStatus, wait_chain: Chain) -> tuple[str, str]:
    """Return reason and role of the culprit."""
    # Between their attempts to have a group judged rollouts generate, and wait for nothing.
    if run.failing_role in _FAILING and (not wait_chain.links or wait_chain.culprit in (run.failing_role, _R)):
        return _FAILING[run.failing_role], run.failing_role
    if not wait_chain.links:
        return "Unknown", _T
    last = wait_chain.links[-1]
    if wait_chain.is_cycle:
        return _of_cycle(run, last)
    if wait_chain.culprit == _V:
        return "VerifierSaturated", _V
    if wait_chain.culprit == _J:
        return "JudgeSlow", _J
    if wait_chain.culprit == _A:
        return "WaitingForAgents", _A
    if wait_chain.culprit == _E:
        return "WaitingForEnvironment", _E
    if wait_chain.culprit == _C:
        stuck = "DataSourceStuck" if last.what == enums.WaitReason.NO_PROMPTS else "CoordinatorUnreachable"
        return stuck, _C
    if wait_chain.culprit == _R:
        return ("WeightSyncStuck" if _applying(run) else "TrainerWaitingForTrajectories"), _R
    if wait_chain.culprit == _T:
        return _of_trainer(run, last), _T
    return "Unknown", wait_chain.culprit or last.role


def _of_cycle(run: types.RunStatus, last: types.Waiting) -> tuple[str, str]:
    """Return reason and role of a circle of waiters, which is one only if none in it could continue.

    Trainer and rollouts wait for each other as well while a version is published that a rollout does not take, and
    while one rollout holds all groups that may be open: then the others have nothing to do, and that one is to blame.
    """
    if _behind(run):
        return "WeightSyncStuck", _R
    if _at_work(run):
        return "TrainerWaitingForTrajectories", _R
    return "WaitCycle", last.role


def _behind(run: types.RunStatus) -> list[types.PodStatus]:
    """Return the rollouts that do not serve the newest version."""
    return [pod for pod in run.pods if pod.role == _R and pod.serving_version < run.published_version]


def _at_work(run: types.RunStatus) -> list[types.PodStatus]:
    """Return the rollouts that hold groups and wait for nothing: they generate, or are not heard of."""
    waiters = {link.pod for link in run.waiting if link.role == _R}
    return [pod for pod in run.pods if pod.role == _R and pod.leases and pod.pod not in waiters]


def _of_trainer(run: types.RunStatus, last: types.Waiting) -> str:
    if run.phase is enums.Phase.STOPPING:
        return "CheckpointStuck"
    if len([pod for pod in run.pods if pod.role == _T]) > 1:
        return "CollectiveHang"
    return "RolloutWaitingForWeights" if last.what == enums.WaitReason.WEIGHTS else "RolloutWaitingForTrainer"


def _applying(run: types.RunStatus) -> bool:
    return any(pod.role == _R and pod.state in _APPLYING for pod in run.pods)


def _culprit(run: types.RunStatus, role: str) -> str:
    """Return the pod of a role that is behind the others: the oldest version, then the one not heard of longest.

    Of rollouts those that hold groups and wait for nothing come first.
    """
    own = [pod for pod in run.pods if pod.role == role]
    if role == _R and not _behind(run):
        own = _at_work(run) or own
    behind = min(own, key=lambda pod: (pod.serving_version, pod.last_seen, pod.pod), default=None)
    return "" if behind is None else behind.pod
