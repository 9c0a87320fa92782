"""Stalls whose cause only the cluster knows: a pod without a node, an image that cannot be pulled. Pods are played."""

import asyncio
import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import pytest

from rljob_api import enums, types
from rljob_operator.kube import kinds
from rljob_testing.operator_stage import Stage

STALL_S = 60
NAMED_S, LOOK_S = 120.0, 0.05
WAITING = types.Waiting(role="trainer", pod="run-trainer-1-0", what="batch 2", on_role="rollout", since=0.0)
NO_NODE = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
NO_IMAGE = 'Back-off pulling image "example/rollout:1"'
PENDING: Mapping[str, Mapping[str, Any]] = {
    "PodsUnschedulable": {
        "phase": "Pending",
        "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_NODE},
        ],
        "containerStatuses": [],
    },
    "ImagePullFailed": {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}],
        "containerStatuses": [
            {
                "name": "rljob", "image": "example", "imageID": "", "ready": False, "restartCount": 0,
                "state": {"waiting": {"reason": "ImagePullBackOff", "message": NO_IMAGE}},
            }
        ],
    },
}  # fmt: skip


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("reason", "said"),
    [("PodsUnschedulable", NO_NODE), ("ImagePullFailed", NO_IMAGE)],
    ids=["PodsUnschedulable", "ImagePullFailed"],
)
async def test_stall_behind_a_pod_that_cannot_start_names_the_pod_and_what_the_cluster_says(
    stage: Stage, reason: str, said: str
) -> None:
    await stage.create(failurePolicy__stall__timeoutSeconds=STALL_S)
    await stage.runs()
    (pod,) = await stage.pods(enums.Role.ROLLOUT)
    name = pod["metadata"]["name"]
    await stage.client.merge(kinds.POD, stage.namespace, name, {"status": PENDING[reason]}, subresource="status")
    assert stage.said.run is not None
    stage.said.run = dataclasses.replace(stage.said.run, waiting=(WAITING,), last_progress_at=time.time() - 2 * STALL_S)

    # No pods are played from here on: this one stays as it is.
    end = time.monotonic() + NAMED_S
    while await stage.condition("run", "Stalled") != ("True", reason):
        assert time.monotonic() < end, await stage.job("run")
        await asyncio.sleep(LOOK_S)
    found = await stage.job("run")
    assert found is not None
    told = found["status"]["stalled"]
    assert (told["role"], told["pod"], told["reason"]) == ("rollout", name, reason)
    (message,) = (one["message"] for one in found["status"]["conditions"] if one["type"] == "Stalled")
    assert name in message
    assert said in message
