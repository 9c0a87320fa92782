"""Which rollout pods go first when the job shrinks (operator reference 10.5). Pure."""

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One rollout pod; `created_at` in unix seconds, `serving_version` below 0 if it serves none yet."""

    pod: str
    ready: bool
    serving_version: int
    num_leases: int
    created_at: float


def victims(pods: Sequence[Candidate], *, num_wanted: int) -> tuple[str, ...]:
    """Return the pods to give up: not ready, then oldest version, then fewest leased groups, then youngest.

    Raises ValueError if `num_wanted` is negative.
    """
    if num_wanted < 0:
        raise ValueError(f"need {num_wanted=} to be at least 0")
    ordered = sorted(pods, key=lambda pod: (pod.ready, pod.serving_version, pod.num_leases, -pod.created_at, pod.pod))
    return tuple(pod.pod for pod in ordered[: max(0, len(pods) - num_wanted)])
