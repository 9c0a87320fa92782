from typing import Any

import pytest

from rljob_api import enums
from rljob_operator.kube import kinds
from rljob_operator.kube.cache import Cache
from rljob_operator.model import Pod
from rljob_operator.reconcile import queue


def job(condition: str = "Running", *, seen: int = 3, name: str = "run") -> dict[str, Any]:
    conditions = [{"type": "Accepted", "status": "True"}, {"type": "Stalled", "status": "False"}]
    conditions.append({"type": condition, "status": "True"})
    status = {"observedGeneration": seen, "conditions": conditions}
    metadata = {"name": name, "namespace": "team", "uid": name, "resourceVersion": "1", "generation": 3}
    return {"metadata": metadata, "status": status}


def pod(**changes: Any) -> Pod:
    return Pod(**{"name": "p", "uid": "p", "role": enums.Role.ROLLOUT, "ready": True, **changes})


@pytest.mark.parametrize("condition", ["Suspended", "Complete", "Failed"])
def test_job_that_stopped_is_at_rest_once_its_pods_are_gone(condition: str) -> None:
    assert queue.is_at_rest(job(condition), ())
    assert not queue.is_at_rest(job(condition), [pod()])


def test_job_that_runs_is_at_rest_while_all_its_pods_are_ready() -> None:
    assert queue.is_at_rest(job(), [pod(), pod()])
    for other in (pod(ready=False), pod(deleting=True)):
        assert not queue.is_at_rest(job(), [pod(), other])


def test_job_that_was_never_seen_was_changed_since_or_is_starting_waits_for_something() -> None:
    never = job()
    del never["status"]
    assert not queue.is_at_rest(never, ())
    assert not queue.is_at_rest(job(seen=2), [pod()])
    assert not queue.is_at_rest(job("Starting"), [pod()])


def test_jobs_at_rest_stand_behind_those_that_wait_for_something_and_none_is_left_out() -> None:
    cache = Cache()
    for name, condition in (("a", "Suspended"), ("b", "Starting"), ("c", "Complete"), ("d", "Suspending")):
        cache.put(kinds.RLJOB, job(condition, name=name))
    behind = dict(queue.startup_order(cache))
    assert {key for key, seconds in behind.items() if not seconds} == {"team/b", "team/d"}
    assert {key for key, seconds in behind.items() if seconds} == {"team/a", "team/c"}
