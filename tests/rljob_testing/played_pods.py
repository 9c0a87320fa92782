"""A stand-in for the kubelets of one job's pods: each pod is the part of a `preempted_run` that its role says.

A pod that is deleted stays, by a finalizer of the stand-in, until its part has ended as a preStop hook would have it
end, so that nobody counts it as gone before. There is no grace period: parts end by themselves.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from rljob_api import enums
from rljob_operator import clock
from rljob_operator.kube import client as cluster
from rljob_operator.kube import kinds
from rljob_testing import operator_nodes, preempted_run
from rljob_testing.operator_stage import Stage
from rljob_testing.preempted_run import Pace, Volume

FINALIZER = "test.rljob.dev/kubelet"
_TICK_S = 0.1


class _Part:
    """What runs in a pod."""

    def __init__(self, run: Callable[[asyncio.Event], Awaitable[enums.ExitCode | None]]) -> None:
        self.stop, self.reported = asyncio.Event(), False
        self.task = asyncio.ensure_future(run(self.stop))


class PlayedPods:
    """Follows the pods of the stage's job, from `following` on."""

    def __init__(self, stage: Stage, volume: Volume, pace: Pace) -> None:
        """Start nothing yet."""
        self._stage, self._volume, self._pace = stage, volume, pace
        self._parts: dict[str, _Part] = {}

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Play for as long as the context lasts; what a part raises ends it."""
        playing = asyncio.create_task(self._play())
        try:
            yield
            assert not playing.done(), playing.exception()
        finally:
            playing.cancel()
            for part in self._parts.values():
                part.stop.set()
            await asyncio.gather(playing, *(part.task for part in self._parts.values()), return_exceptions=True)

    async def _play(self) -> None:
        while True:
            for pod in await self._stage.pods():
                # It may have changed, or gone, since it was read.
                with contextlib.suppress(cluster.ApiError):
                    await self._see(pod)
            await asyncio.sleep(_TICK_S)

    async def _see(self, pod: Mapping[str, Any]) -> None:
        uid, goes = pod["metadata"]["uid"], "deletionTimestamp" in pod["metadata"]
        part = self._parts.get(uid)
        if part is None and goes:
            await self._release(pod)
        elif part is None:
            await self._hold(pod)
            self._parts[uid] = _Part(self._of(pod))
            await self._report(pod, operator_nodes.running(pod))
        elif part.task.done() and not part.reported:
            part.reported = True
            await self._report(pod, _ended(part.task.result()))
        if part is not None and goes:
            part.stop.set()
            if part.task.done():
                await self._release(pod)

    def _of(self, pod: Mapping[str, Any]) -> Callable[[asyncio.Event], Awaitable[enums.ExitCode | None]]:
        """Return what runs in a pod until it is asked to stop; what ends by itself too returns its exit code."""
        labels = pod["metadata"]["labels"]
        role = enums.Role(labels["rljob.dev/role"])

        async def coordinator(stop: asyncio.Event) -> None:
            async with self._volume.coordinator():
                await stop.wait()

        async def rollout(stop: asyncio.Event) -> None:
            await preempted_run.rollout(self._volume, self._pace, stop, pod=pod["metadata"]["name"])

        async def trainer(stop: asyncio.Event) -> enums.ExitCode:
            return await preempted_run.trainer(self._volume, self._pace, stop, attempt=int(labels["rljob.dev/attempt"]))

        async def verifier(stop: asyncio.Event) -> None:
            await stop.wait()

        parts: Mapping[enums.Role, Callable[[asyncio.Event], Awaitable[enums.ExitCode | None]]] = {
            enums.Role.COORDINATOR: coordinator,
            enums.Role.ROLLOUT: rollout,
            enums.Role.TRAINER: trainer,
            enums.Role.VERIFIER: verifier,
        }
        return parts[role]

    async def _hold(self, pod: Mapping[str, Any]) -> None:
        await self._finalize(pod, [*pod["metadata"].get("finalizers", ()), FINALIZER])

    async def _release(self, pod: Mapping[str, Any]) -> None:
        held = pod["metadata"].get("finalizers", ())
        if FINALIZER in held:
            await self._finalize(pod, [each for each in held if each != FINALIZER])

    async def _finalize(self, pod: Mapping[str, Any], finalizers: list[str]) -> None:
        metadata = pod["metadata"]
        # Other controllers have finalizers of their own in the same list.
        change = {"finalizers": finalizers, "resourceVersion": metadata["resourceVersion"]}
        await self._stage.client.merge(kinds.POD, self._stage.namespace, metadata["name"], {"metadata": change})

    async def _report(self, pod: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        name = pod["metadata"]["name"]
        await self._stage.client.merge(kinds.POD, self._stage.namespace, name, {"status": status}, subresource="status")


def _ended(code: enums.ExitCode | None) -> dict[str, Any]:
    """Return the status of a pod whose container has ended."""
    number, now = int(code or 0), clock.to_timestamp(time.time())
    container = {
        "name": "rljob", "image": "example", "imageID": "", "ready": False, "restartCount": 0,
        "state": {"terminated": {"exitCode": number, "reason": "Error" if number else "Completed", "finishedAt": now}},
    }  # fmt: skip
    ready = {"type": "Ready", "status": "False"}
    phase = "Failed" if number else "Succeeded"
    return {"phase": phase, "conditions": [ready], "containerStatuses": [container]}
