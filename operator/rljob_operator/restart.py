"""Which jobs a new process looks at first: those that wait for something, before those that were at rest (17.7).

All jobs are compared once after a start. A thousand take a minute, and what is overdue must not wait so long.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any

from rljob_api.conditions import ConditionType as Type
from rljob_operator.cache import Cache
from rljob_operator.model import Pod

_ENDED = frozenset({Type.COMPLETE, Type.FAILED})


def order(cache: Cache) -> list[str]:
    """Return the keys of all jobs, those at rest last."""
    kept = ((key, cache.job(key)) for key in cache.keys)
    waits = {
        key: not is_at_rest(json.loads(job.load()), cache.pods(key, job.uid)) for key, job in kept if job is not None
    }
    return sorted(waits, key=lambda key: not waits[key])


def is_at_rest(job: Mapping[str, Any], pods: Collection[Pod]) -> bool:
    """Return whether nothing was under way when the job's status was last written.

    It was seen as it is now, and runs with all pods ready, or is suspended or has ended and has none.
    """
    status = job.get("status") or {}
    if status.get("observedGeneration") != job["metadata"].get("generation"):
        return False
    held = {one["type"] for one in status.get("conditions") or () if one["status"] == "True"}
    if held & {*_ENDED, Type.SUSPENDED}:
        return not pods
    return Type.RUNNING in held and all(pod.ready and not pod.deleting for pod in pods)
