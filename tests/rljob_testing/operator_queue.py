"""What a stand-in for Kueue's controller does to the Workloads of a real API server, for the job of a stage.

It says who is admitted and who is evicted. Quota that is reserved stays so until the operator returns it.
"""

import time
from typing import Any

from rljob_operator.kube import kinds
from rljob_testing import stand_in_queue
from rljob_testing.operator_stage import Stage

QUEUE = "research"
LABELS = {"kueue.x-k8s.io/queue-name": QUEUE}


async def workload(stage: Stage) -> dict[str, Any] | None:
    """Return the Workload of the stage's job; None without one."""
    children = [each for each in await stage.children("Workload") if "deletionTimestamp" not in each["metadata"]]
    assert len(children) <= 1, "a job asks once"
    return children[0] if children else None


async def asked(stage: Stage) -> dict[str, Any]:
    """Wait until the job asks for quota, and return its Workload."""
    kept: list[dict[str, Any]] = []

    async def is_there() -> bool:
        answer = await workload(stage)
        kept[:] = [] if answer is None else [answer]
        return bool(kept)

    await stage.sees(is_there)
    return kept[0]


async def write(stage: Stage, child: dict[str, Any], status: dict[str, Any]) -> None:
    """Write the status of a Workload, as Kueue does."""
    name = child["metadata"]["name"]
    await stage.client.merge(kinds.QUEUED, stage.namespace, name, {"status": status}, subresource="status")


async def admit(stage: Stage, *, flavor: str = "") -> None:
    """Give the job its quota."""
    child = await asked(stage)
    await write(stage, child, stand_in_queue.admitted(child, flavor=flavor))


async def evict(stage: Stage, *, reason: str = "Preempted", within_s: float = 240.0) -> float:
    """Take the quota back; return the seconds until it was free, which it must not be while a pod is there."""
    child = await asked(stage)
    began = time.monotonic()
    await write(stage, child, stand_in_queue.evicted(child, reason=reason))

    async def is_free() -> bool:
        answer = await workload(stage)
        if answer is not None and stand_in_queue.holds_quota(answer):
            return False
        left = [(pod["metadata"], pod.get("status")) for pod in await stage.pods()]
        assert left == [], f"quota was returned before the last pod had gone: {left}"
        return True

    await stage.sees(is_free, within_s=within_s)
    return time.monotonic() - began
