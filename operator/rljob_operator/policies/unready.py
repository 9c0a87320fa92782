"""Whom a start was waiting for, as a sentence for the message of its end. Pure (operator reference 8.7)."""

from collections.abc import Iterator, Sequence

from rljob_api import names
from rljob_operator.model import Pod
from rljob_operator.policies import scheduling

_MOST_NAMED = 5


def waited_for(pods: Sequence[Pod], *, drain_s: float, now: float) -> str:
    """Return who was not ready: the pod that could not begin, and every other pod and role that was not there to work.

    drain_s: `spec.rollout.drainSeconds`. now: unix seconds.
    """
    found = scheduling.obstacle(pods, drain_s=drain_s, now=now)
    unready = list(_unready(pods, besides="" if found is None else found.pod.name))
    said = [] if found is None else [f"{found.reason}: {found.message}"]
    if unready:
        more = len(unready) - _MOST_NAMED
        said.append(f"not ready: {', '.join(unready[:_MOST_NAMED])}{f' and {more} more' if more > 0 else ''}")
    return "; ".join(said) or "every pod was ready"


def _unready(pods: Sequence[Pod], *, besides: str) -> Iterator[str]:
    for role in names.Role:
        own = sorted((pod for pod in pods if pod.role is role and not pod.is_terminal), key=lambda pod: pod.name)
        if not own:
            yield f"{role}, which has no pod"
        for pod in own:
            if not pod.ready and pod.name != besides:
                yield f"{pod.name} ({pod.waiting_reason})" if pod.waiting_reason else pod.name
