"""What the coordinator knows of each registered process from its last call. In memory: after a restart it is reported
again.
"""

import collections
import dataclasses
from collections.abc import Iterable, Sequence

from rljob_api import enums, types

WINDOW_S = 300.0


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """A rollout's totals at an instant. `wait_s`: slot-seconds without generation divided by slots, all reasons."""

    at: float
    wait_s: float
    generated_tokens: int


@dataclasses.dataclass(slots=True, kw_only=True)
class Pod:
    """One session's process. `waiting_since` 0 means that it does not wait; `lease_ids`: what it held when it reported
    last, and what it was granted since.
    """

    token: str
    role: enums.Role
    pod: str
    attempt: int = 0
    rank: int = 0
    last_seen: float = 0.0
    serving_version: int = types.NO_VERSION
    receiver_state: str = ""
    draining: bool = False
    lease_ids: Sequence[str] = ()
    load: types.RolloutLoad = dataclasses.field(default_factory=types.RolloutLoad)
    waiting_for: str = ""
    waiting_on: str = ""
    waiting_since: float = 0.0
    samples: collections.deque[Sample] = dataclasses.field(default_factory=collections.deque)


class Pods:
    """All processes with an open session."""

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}
        self.num_changes = 0
        # Tokens of the rollouts that serve the version which is evaluated.
        self.evaluators: frozenset[str] = frozenset()

    def add(self, pod: Pod, *, replaced: Iterable[str] = ()) -> None:
        for token in replaced:
            self._pods.pop(token, None)
        self._pods[pod.token] = pod
        self.num_changes += 1

    def silent(self, *, before: float) -> list[Pod]:
        """Return the rollouts that were last heard of before a time."""
        return [pod for pod in self.all(enums.Role.ROLLOUT) if pod.last_seen < before]

    def forget(self, tokens: Iterable[str]) -> None:
        """These are gone for good: their names may never come again."""
        for token in tokens:
            self._pods.pop(token, None)
            self.num_changes += 1

    def all(self, role: enums.Role | None = None) -> list[Pod]:
        """Return the processes, of one role if given, by name and rank."""
        chosen = [pod for pod in self._pods.values() if role is None or pod.role is role]
        return sorted(chosen, key=lambda pod: (pod.role, pod.pod, pod.rank))

    def record_contact(self, token: str, *, now: float) -> Pod | None:
        """Note that a process was heard of."""
        pod = self._pods.get(token)
        if pod is not None:
            pod.last_seen = now
        return pod

    def serving(self, token: str) -> int:
        """Return the version that a rollout served by its last heartbeat."""
        pod = self._pods.get(token)
        return types.NO_VERSION if pod is None else pod.serving_version

    def leases_of(self, token: str) -> Sequence[str]:
        """Return the leases that a rollout named in its last heartbeat or was granted since."""
        pod = self._pods.get(token)
        return () if pod is None else pod.lease_ids

    def granted(self, token: str, lease_ids: Sequence[str]) -> None:
        """Note what a rollout holds besides what it reported."""
        pod = self._pods.get(token)
        if pod is not None:
            pod.lease_ids = (*pod.lease_ids, *lease_ids)

    def waits(self, token: str, *, what: str, on: str, since: float) -> None:
        """Note what a process waits for; `what` empty: it no longer waits."""
        pod = self._pods.get(token)
        if pod is None:
            return
        if what and not pod.waiting_since:
            pod.waiting_since = since
        elif not what:
            pod.waiting_since = 0.0
        pod.waiting_for, pod.waiting_on = what, on if what else ""

    def report(
        self,
        token: str,
        *,
        serving_version: int,
        receiver_state: str,
        load: types.RolloutLoad,
        draining: bool,
        now: float,
        lease_ids: Sequence[str] = (),
    ) -> Pod | None:
        pod = self.record_contact(token, now=now)
        if pod is None:
            return None
        pod.serving_version, pod.receiver_state, pod.draining = serving_version, receiver_state, draining
        pod.load, pod.lease_ids = load, lease_ids
        pod.waiting_for, pod.waiting_since = load.waiting_for, load.waiting_since if load.waiting_for else 0.0
        pod.waiting_on = _WAITS_ON.get(load.waiting_for, "")
        pod.samples.append(Sample(now, sum(load.wait_s.values()), load.generated_tokens))
        while pod.samples[0].at < now - WINDOW_S:
            pod.samples.popleft()
        return pod


_WAITS_ON: dict[str, str] = {
    enums.WaitReason.STALENESS: enums.Role.TRAINER,
    enums.WaitReason.WEIGHTS: enums.Role.TRAINER,
    enums.WaitReason.VERIFIER: enums.Role.VERIFIER,
    enums.WaitReason.JUDGE: enums.Role.JUDGE,
    enums.WaitReason.AGENTS: enums.Role.AGENTS,
    enums.WaitReason.ENVIRONMENT: enums.Role.ENVIRONMENT,
    enums.WaitReason.NO_PROMPTS: enums.Role.COORDINATOR,
    enums.WaitReason.COORDINATOR: enums.Role.COORDINATOR,
}


def is_ready(
    pod: Pod, *, serving_step: int, head_step: int, bound: int, now: float, silent_s: float, evaluates: bool = False
) -> bool:
    """Return whether a rollout counts: heard of lately, serving, not draining, within the bound of the newest version,
    which one that evaluates an older version is not asked for.
    """
    return (
        now - pod.last_seen <= silent_s
        and pod.receiver_state == enums.ReceiverState.SERVING
        and not pod.draining
        and (evaluates or head_step - serving_step <= bound)
    )


def wait_share(rollouts: Iterable[Pod]) -> float:
    """Return seconds lost per replica over seconds passed in the window, 0..1."""
    spans = [(pod.samples[0], pod.samples[-1]) for pod in rollouts if len(pod.samples) > 1]
    passed = sum(last.at - first.at for first, last in spans)
    lost = sum(max(0.0, last.wait_s - first.wait_s) for first, last in spans)
    return min(1.0, lost / passed) if passed > 0 else 0.0


def tokens_per_s(rollouts: Iterable[Pod]) -> float:
    """Return the generated tokens per second of all rollouts together, over the window."""
    spans = [(pod.samples[0], pod.samples[-1]) for pod in rollouts if len(pod.samples) > 1]
    return sum(
        max(0, last.generated_tokens - first.generated_tokens) / (last.at - first.at)
        for first, last in spans
        if last.at > first.at
    )
