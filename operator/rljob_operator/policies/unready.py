"""Whom a start was waiting for, as a sentence for the message of its end. Pure (operator reference 8.7)."""

from collections.abc import Iterator, Sequence

from rljob_api import names
from rljob_operator.model import Pod
from rljob_operator.policies import scheduling

_MOST_NAMED = 5


def waited_for(pods: Sequence[Pod], *, drain_s: float, now: float) -> str:
    """Return who was not ready: the pod that could not begin, or every pod and role that was not there to work.

    drain_s: `spec.rollout.drainSeconds`. now: unix seconds.
    """
    found = scheduling.obstacle(pods, drain_s=drain_s, now=now)
    if found is not None:
        return f"{found.reason}: {found.message}"
    unready = list(_unready(pods))
    if not unready:
        return "every pod was ready"
    more = len(unready) - _MOST_NAMED
    return f"not ready: {', '.join(unready[:_MOST_NAMED])}{f' and {more} more' if more > 0 else ''}"


def _unready(pods: Sequence[Pod]) -> Iterator[str]:
    for role in names.Role:
        own = sorted((pod for pod in pods if pod.role is role and not pod.is_terminal), key=lambda pod: pod.name)
        if not own:
            yield f"{role}, which has no pod"
        for pod in own:
            if not pod.ready:
                yield f"{pod.name} ({pod.waiting_reason})" if pod.waiting_reason else pod.name
