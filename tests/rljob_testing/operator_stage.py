"""A running operator in this process, a coordinator that says what it is reported, and hands that play kubelets.

The operator, its client and Kopf are the real ones. Where no node is there, pods are played: their status is patched as
a kubelet would report it. The coordinator is a fake over real gRPC.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import grpc.aio

from rljob_api import enums, types
from rljob_api.wire import codec
from rljob_api.wire.v1 import status_pb2, status_pb2_grpc
from rljob_operator import clock
from rljob_operator.app import Operator
from rljob_operator.kube import client as cluster
from rljob_operator.kube import kinds, watch
from rljob_operator.kube.fence import fence_of
from rljob_operator.settings import JobSettings, Settings
from rljob_testing.cluster import manifests

IMAGES = {role: f"example/rljob-{role}:1" for role in enums.STANDARD_ROLES}
_TICK_S = 0.05


class SaidStatus(status_pb2_grpc.RunStatusServicer):
    """A coordinator's stream: whatever `run` holds, as soon as it changes; None refuses.

    num_opened: streams so far; num_open: those that are read now; num_said: statuses sent.
    """

    def __init__(self) -> None:
        self.run: types.RunStatus | None = None
        self.num_opened, self.num_open, self.num_said = 0, 0, 0

    async def WatchStatus(
        self, request: status_pb2.StatusRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[Any]:
        self.num_opened += 1
        self.num_open += 1
        try:
            while (run := self.run) is not None:
                self.num_said += 1
                yield codec.to_message(run)
                end = time.monotonic() + 2 * request.interval_s
                while self.run is run and time.monotonic() < end:
                    await asyncio.sleep(_TICK_S)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")
        finally:
            self.num_open -= 1

    def says(self, phase: enums.Phase, *, step: int, **more: Any) -> None:
        """Let it answer so from now on."""
        now = time.time()
        self.run = types.RunStatus(
            job="job", phase=phase, step=step, max_steps=4, last_progress_at=now, progress=step, **more
        )


@contextlib.asynccontextmanager
async def said_status() -> AsyncIterator[tuple[SaidStatus, str]]:
    """Yield a coordinator's fake and its address on loopback."""
    server, said = grpc.aio.server(), SaidStatus()
    status_pb2_grpc.add_RunStatusServicer_to_server(said, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield said, f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def connections_gone() -> None:
    """Wait until closed TLS connections are gone: aiohttp lets go of them in the background (its docs: 250 ms)."""
    await asyncio.sleep(0.25)


Request = tuple[str, str, int]


@contextlib.asynccontextmanager
async def running_operator(
    connection: cluster.ApiConnection,
    *,
    coordinator: str,
    settings: Settings | None = None,
    requests: list[Request] | None = None,
) -> AsyncIterator[Operator]:
    """Yield an operator that runs on a thread of its own, as its process would; at the end it is stopped in order.

    requests: gets verb, plural and HTTP status of every request that it sends.
    """
    sent = [] if requests is None else requests
    chosen = settings or Settings(jobs=JobSettings(images=IMAGES))
    made, loops = list[Operator](), list[asyncio.AbstractEventLoop]()

    async def body() -> None:
        fence = fence_of(chosen.leader_election)
        client = cluster.Client(
            connection, qps=1000.0, burst=1000, on_answer=lambda *answer: sent.append(answer), fence=fence
        )
        operator = Operator(chosen, client, address_of=lambda namespace, name: coordinator, fence=fence, identity="one")
        loops.append(asyncio.get_running_loop())
        made.append(operator)
        try:
            await watch.serve(
                operator,
                connection=connection,
                namespaces=chosen.watch_namespaces,
                namespace_selector=chosen.watch_namespace_selector,
            )
        finally:
            await operator.stop()
            await connections_gone()

    async def what_is_missing() -> str:
        return made[0].ready()

    def is_ready() -> bool:
        # On its own thread, as its probes ask: another may ask in the middle of a change.
        return not asyncio.run_coroutine_threadsafe(what_is_missing(), loops[0]).result(timeout=60.0)

    running = asyncio.create_task(asyncio.to_thread(asyncio.run, body()))
    try:
        await until(lambda: running.done() or (made and is_ready()), within_s=60.0)
        assert not running.done(), running.exception()
        yield made[0]
    finally:
        if made and not running.done():
            loops[0].call_soon_threadsafe(made[0].stopped.set)
        await running


async def until(holds: Callable[[], object], *, within_s: float = 30.0) -> None:
    """Wait until something holds; it is looked at a few times a second."""
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, f"did not happen within {within_s:.0f} s"
        await asyncio.sleep(_TICK_S)


def writes(requests: list[Request]) -> list[Request]:
    """Return the requests that change something; a Lease that is renewed is not."""
    return [one for one in requests if one[0] not in ("get", "list", "watch") and one[1] != "leases"]


class Stage:
    """The cluster around the operator, through a client of its own: jobs, children, and pods that are played.

    requests: what the operator sends. Every test has a namespace of its own.
    """

    def __init__(self, client: cluster.Client, namespace: str, said: SaidStatus, requests: list[Request]) -> None:
        self.client, self.namespace, self.said, self.requests = client, namespace, said, requests

    async def create(self, name: str = "run", *, labels: Mapping[str, str] | None = None, **changes: object) -> None:
        """Create a small job; keywords are paths below spec, with two underscores for a dot."""
        given = {"security.tls": "Disabled", **{key.replace("__", "."): value for key, value in changes.items()}}
        document = manifests.job(name, given)
        document["metadata"] = {"name": name, "namespace": self.namespace, "labels": dict(labels or {})}
        await self.client.apply(kinds.RLJOB, self.namespace, document)

    async def edit(self, name: str, spec: dict[str, Any]) -> None:
        """Merge into the spec of a job."""
        await self.client.merge(kinds.RLJOB, self.namespace, name, {"spec": spec})

    async def runs(self, name: str = "run", *, step: int = 1) -> None:
        """Let the coordinator report a step, and wait until the job says that it runs."""
        self.said.says(enums.Phase.RUNNING, step=step, checkpoint_step=step, checkpoint_at=time.time())
        await self.until(name, "Running")

    async def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return an object."""
        return await self.client.get(kinds.BY_NAME[kind], self.namespace, name)

    async def children(self, kind: str) -> list[dict[str, Any]]:
        """Return the children of a kind."""
        return await self.client.list(kinds.BY_NAME[kind], self.namespace, selector=kinds.MANAGED)

    async def delete(self, kind: str, name: str) -> None:
        """Delete an object by hand; nothing happens if it is gone."""
        found = await self.get(kind, name)
        if found is not None:
            uid = found["metadata"]["uid"]
            await self.client.delete(kinds.BY_NAME[kind], self.namespace, name, uid=uid, grace_s=None)

    async def job(self, name: str) -> Mapping[str, Any] | None:
        """Return a job."""
        return await self.client.get(kinds.RLJOB, self.namespace, name)

    async def condition(self, name: str, kind: str) -> tuple[str, str]:
        """Return status and reason of a condition, empty without it."""
        found = await self.job(name)
        conditions = (found or {}).get("status", {}).get("conditions", [])
        return next(((one["status"], one["reason"]) for one in conditions if one["type"] == kind), ("", ""))

    async def until(self, name: str, kind: str, *, is_: str = "True", within_s: float = 60.0) -> None:
        """Wait for a condition, playing pods meanwhile."""
        end = time.monotonic() + within_s
        while (await self.condition(name, kind))[0] != is_:
            assert time.monotonic() < end, f"{kind} is not {is_}: {(await self.job(name) or {}).get('status')}"
            await self.turn()

    async def sees(self, holds: Callable[[], Awaitable[object]], *, within_s: float = 60.0) -> None:
        """Wait until something holds, playing pods meanwhile."""
        end = time.monotonic() + within_s
        while not await holds():
            assert time.monotonic() < end, f"did not happen: {(await self.job('run') or {}).get('status')}"
            await self.turn()

    async def turn(self) -> None:
        """Play kubelets once and wait a moment."""
        await self.play()
        await asyncio.sleep(_TICK_S)

    async def pods(self, role: enums.Role | None = None) -> list[dict[str, Any]]:
        """Return the jobs' pods, of one role if it is given."""
        selector = kinds.OF_JOBS if role is None else f"{kinds.OF_JOBS},rljob.dev/role={role}"
        return await self.client.list(kinds.POD, self.namespace, selector=selector)

    async def play(self) -> None:
        """Let every pod that has not begun be running and ready."""
        for pod in await self.pods():
            if (pod.get("status") or {}).get("phase", "Pending") == "Pending" and not _goes(pod):
                await self._report(
                    pod, phase="Running", state={"running": {"startedAt": clock.to_timestamp(time.time())}}
                )

    async def end_trainer(self, exit_code: int, *, num_pods: int | None = None) -> None:
        """Let the trainer's running pods end with a code, or as many of them as are asked for."""
        phase = "Failed" if exit_code else "Succeeded"
        end = {
            "exitCode": exit_code,
            "finishedAt": clock.to_timestamp(time.time()),
            "reason": "Error" if exit_code else "",
        }
        for pod in (await self.pods(enums.Role.TRAINER))[:num_pods]:
            if pod["status"].get("phase") == "Running":
                await self._report(pod, phase=phase, state={"terminated": end})

    async def _report(self, pod: Mapping[str, Any], *, phase: str, state: Mapping[str, Any]) -> None:
        ready = phase == "Running"
        container = {
            "name": "rljob",
            "image": "example",
            "imageID": "",
            "ready": ready,
            "restartCount": 0,
            "state": dict(state),
        }
        condition = {"type": "Ready", "status": "True" if ready else "False"}
        status = {"phase": phase, "conditions": [condition], "containerStatuses": [container]}
        with contextlib.suppress(cluster.ApiError):  # it may be gone by now
            name = pod["metadata"]["name"]
            await self.client.merge(kinds.POD, self.namespace, name, {"status": status}, subresource="status")


def _goes(pod: Mapping[str, Any]) -> bool:
    return "deletionTimestamp" in pod["metadata"]
