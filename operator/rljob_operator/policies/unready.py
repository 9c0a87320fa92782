"""Whom a start was waiting for, as a sentence for the message of its end. Pure (operator reference 8.7)."""

from collections.abc import Iterator, Sequence

from rljob_api import names
from rljob_operator.model import Observed, Pod
from rljob_operator.policies import scheduling

_MOST_NAMED = 5


def waited_for(seen: Observed, *, now: float) -> str:
    """Return who was not ready: what could not begin, and every other pod and role that was not there to work; where
    all were, what the coordinator says of the run. now: unix seconds.
    """
    found = scheduling.obstacle(seen, drain_s=seen.job.spec.rollout.drain_seconds, now=now)
    unready = list(_unready(seen.pods, besides="" if found is None else found.pod))
    said = [] if found is None else [f"{found.reason}: {found.message}"]
    if unready:
        more = len(unready) - _MOST_NAMED
        said.append(f"not ready: {', '.join(unready[:_MOST_NAMED])}{f' and {more} more' if more > 0 else ''}")
    return "; ".join(said or ["every pod was ready", *_of_run(seen)])


def _of_run(seen: Observed) -> Iterator[str]:
    """Yield what the coordinator says of a run whose pods were all ready."""
    run = seen.hears
    if run is None:
        return
    yield f"the coordinator says {run.phase}{f' ({run.evaluating})' if run.evaluating else ''}"
    for one in run.waiting[:_MOST_NAMED]:
        yield f"{one.pod or one.role} waits for {one.what}"


def _unready(pods: Sequence[Pod], *, besides: str) -> Iterator[str]:
    for role in names.Role:
        own = sorted((pod for pod in pods if pod.role is role and not pod.is_terminal), key=lambda pod: pod.name)
        if not own:
            yield f"{role}, which has no pod"
        for pod in own:
            if not pod.ready and pod.name != besides:
                yield f"{pod.name} ({pod.waiting_reason})" if pod.waiting_reason else pod.name
