"""Many jobs at once on a cluster with stand-in kubelets: made, counted, edited, failed, deleted. Figures in seconds.

No coordinator runs in the pods. One stand-in answers for all jobs whose connections are not encrypted; coordinators of
encrypted jobs do not answer, as in a start that waits for images.
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import datetime
import functools
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

import grpc.aio

from rljob_api import enums, types
from rljob_api.wire import codec
from rljob_api.wire.v1 import status_pb2_grpc
from rljob_operator.kube import kinds
from rljob_operator.kube.kinds import Kind
from rljob_operator.pki.manager import SECRET
from rljob_testing import runtime_makers
from rljob_testing.cluster import manifests
from rljob_testing.operator_api import ClusterApi, Object

NAMESPACES = Kind("Namespace", "", "v1", "namespaces")
# What a job can have, itself included, in the order in which it is made; accounts and ConfigMaps are also others'.
OURS = (kinds.RLJOB, SECRET, *kinds.QUIET, *kinds.WORKLOADS)
_COUNTED = (*OURS, kinds.POD)
# A namespace has one of each of its own.
_GIVEN = ("ServiceAccount", "ConfigMap")
# Waiting must not be what keeps a small machine busy: a question is asked again after so many times what it took.
_POLL_S, _POLL_OF_ASKING = 0.25, 5.0
_DAY_S = 86_400
_ACCOUNT = {"spec": {"serviceAccountName": "default"}}
# A platform that has isolated accounts of its own: jobs need none made for them.
RUNTIME = runtime_makers.document(kind="RLJobRuntime", coordinator=_ACCOUNT, rollout=_ACCOUNT, trainer=_ACCOUNT)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What each job is like. minimal: plain text, no policies, the platform's account: the fewest children."""

    minimal: bool
    rollouts: int = 1
    nodes: int = 1

    @property
    def pods(self) -> int:
        """Return the pods of one job: a coordinator and a verifier besides."""
        return 2 + self.rollouts + self.nodes

    def job(self, name: str, changes: Mapping[str, object] | None = None) -> Object:
        """Return a job of this shape."""
        own: dict[str, object] = {"rollout.replicas": self.rollouts, "trainer.nodes": self.nodes}
        # A counter that makes no progress is steady here, not stalled.
        own["failurePolicy.stall.timeoutSeconds"] = _DAY_S
        if self.minimal:
            runtime = {"kind": "RLJobRuntime", "name": "platform"}
            own |= {"security.tls": "Disabled", "security.networkPolicy": False, "runtimeRef": runtime}
        return manifests.job(name, {**own, **(changes or {})})


class StandIn(status_pb2_grpc.RunStatusServicer):
    """Every coordinator of a namespace: says what `run` holds, on each stream as a coordinator does."""

    def __init__(self) -> None:
        """Say that the first step is done and the run continues. Belongs to the running event loop."""
        self.loop, self._changed = asyncio.get_running_loop(), asyncio.Event()
        self.says(enums.Phase.RUNNING, step=1)

    def says(self, phase: enums.Phase, *, step: int) -> None:
        """Let all of them answer so from now on."""
        now = time.time()
        self.run = types.RunStatus(
            job="job", phase=phase, step=step, max_steps=4, last_progress_at=now, progress=step, checkpoint_step=step,
            checkpoint_at=now,
        )  # fmt: skip
        self.loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def WatchStatus(self, request: Any, context: object) -> AsyncIterator[Any]:
        while True:
            changed, message = self._changed, codec.to_message(self.run)
            yield message
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), 2 * request.interval_s)


@contextlib.contextmanager
def standing_in() -> Iterator[tuple[StandIn, str]]:
    """Yield a stand-in and its address on loopback."""
    ready: concurrent.futures.Future[tuple[StandIn, int]] = concurrent.futures.Future()
    ended = asyncio.Event()

    async def serve() -> None:
        server, stand_in = grpc.aio.server(), StandIn()
        status_pb2_grpc.add_RunStatusServicer_to_server(stand_in, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        ready.set_result((stand_in, port))
        await ended.wait()
        await server.stop(None)

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="stand-in coordinators")
    thread.start()
    stand_in, port = ready.result(timeout=60.0)
    try:
        yield stand_in, f"127.0.0.1:{port}"
    finally:
        stand_in.loop.call_soon_threadsafe(ended.set)
        thread.join()


@contextlib.contextmanager
def stepping(stand_in: StandIn, *, every_s: float = 5.0) -> Iterator[None]:
    """Let all runs of a stand-in make a step now and then, for as long as the context lasts."""
    ended = threading.Event()

    def step_on() -> None:
        for step in itertools.count(1):
            stand_in.says(enums.Phase.RUNNING, step=step)
            if ended.wait(every_s):
                return

    thread = threading.Thread(target=step_on, name="steps")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """How long a burst took: until the last child of ours was made, and until the last pod was ready."""

    children: int
    children_s: float
    pods: int
    pods_s: float


def spread(name: str, count: int) -> tuple[str, ...]:
    """Return the names of as many namespaces: many jobs belong to many teams."""
    return (name,) if count == 1 else tuple(f"{name}-{number}" for number in range(count))


class Load:
    """Jobs of some namespaces, dealt out in turn. `check` fails while waiting when the operator has died."""

    def __init__(self, api: ClusterApi, namespaces: Sequence[str], *, check: Callable[[], object]) -> None:
        """Make the namespaces."""
        self.api, self.namespaces, self._check = api, tuple(namespaces), check
        for name in self.namespaces:
            api.create(NAMESPACES, None, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        # A namespace gets its account and its root certificate a moment later.
        self.until(lambda: all(self.count(kind) == len(self.namespaces) for kind in _GIVEN), within_s=60.0)
        for name in self.namespaces:
            api.create(kinds.RUNTIME, name, RUNTIME)

    def home(self, number: int) -> str:
        """Return the namespace of `job-<number>`."""
        return self.namespaces[number % len(self.namespaces)]

    def until(self, holds: Callable[[], bool], *, within_s: float) -> None:
        """Wait until something holds; what takes long to find out is asked less often."""
        end = time.monotonic() + within_s
        while True:
            asked = time.monotonic()
            if holds():
                return
            self._check()
            assert time.monotonic() < end, f"did not happen within {within_s:.0f} s: {self.census()}"
            time.sleep(max(_POLL_S, _POLL_OF_ASKING * (time.monotonic() - asked)))

    def count(self, kind: str) -> int:
        """Return how many objects of a kind there are, others' included."""
        return sum(self.api.count(kinds.BY_NAME[kind], namespace) for namespace in self.namespaces)

    def census(self) -> dict[str, int]:
        """Return how many objects there are by kind, those of every namespace left out."""
        return {kind.kind: sum(self._num_left(kind, each) for each in self.namespaces) for kind in _COUNTED}

    def _num_left(self, kind: Kind, namespace: str) -> int:
        return self.api.count(kind, namespace) - (kind.kind in _GIVEN)

    def create(self, shape: Shape, first: int, after: int) -> None:
        """Make jobs `job-<first>` to below `after`."""
        for number in range(first, after):
            self.api.create(kinds.RLJOB, self.home(number), shape.job(f"job-{number}"))

    def metadata(self, kind: Kind, *, selector: str = "", fields: str = "") -> Iterator[Object]:
        """Yield the metadata of all objects of a kind."""
        for namespace in self.namespaces:
            yield from self.api.metadata(kind, namespace, selector=selector, fields=fields)

    def burst(self, shape: Shape, num_jobs: int, *, within_s: float) -> Created:
        """Make jobs all at once and wait until they have all they want, pods included."""
        self.create(shape, 0, num_jobs)
        self.until(lambda: self.count("Job") == num_jobs, within_s=within_s)
        self.until(lambda: self.count("Pod") == num_jobs * shape.pods, within_s=within_s)
        self.until(lambda: self._num_running_pods() == num_jobs * shape.pods, within_s=within_s)
        first = min(_made(one) for one in self.metadata(kinds.RLJOB))
        made = [_made(one) for kind in OURS[1:] for one in self.metadata(kind, selector=kinds.MANAGED)]
        return Created(
            children=len(made),
            children_s=max(made) - first,
            pods=num_jobs * shape.pods,
            pods_s=max(self._ready_at()) - first,
        )

    def pods(self, role: enums.Role | None = None) -> list[Object]:
        """Return the pods of all jobs, of one role if it is given."""
        selector = kinds.MANAGED if role is None else f"{kinds.MANAGED},rljob.dev/role={role}"
        return [pod for namespace in self.namespaces for pod in self.api.list(kinds.POD, namespace, selector=selector)]

    def _num_running_pods(self) -> int:
        return sum(1 for _ in self.metadata(kinds.POD, fields="status.phase=Running"))

    def _ready_at(self) -> list[float]:
        conditions = (one for pod in self.pods() for one in pod["status"].get("conditions") or ())
        return [_seconds(one["lastTransitionTime"]) for one in conditions if (one["type"], one["status"]) == _IS_READY]

    def edit(self, number: int, spec: Object) -> None:
        """Merge into the spec of `job-<number>`."""
        self.api.merge(kinds.RLJOB, self.home(number), f"job-{number}", {"spec": spec})

    def replicas_follow(self, number: int, replicas: int, *, within_s: float) -> float:
        """Set the rollouts of `job-<number>` and return the seconds until its Deployment wants as many."""
        deployment, name, began = kinds.BY_NAME["Deployment"], f"job-{number}-rollout", time.monotonic()
        self.edit(number, {"rollout": {"replicas": replicas}})
        while self.api.get(deployment, self.home(number), name)["spec"]["replicas"] != replicas:
            self._check()
            assert time.monotonic() - began < within_s, f"{name} did not follow"
            time.sleep(0.01)
        return time.monotonic() - began

    def end_pods(self, pods: list[Object], exit_code: int) -> float:
        """Let containers end with a code; return the unix time of the last one."""
        phase = "Failed" if exit_code else "Succeeded"
        for pod in pods:
            now = datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            ended = {"exitCode": exit_code, "finishedAt": now, "reason": "Error" if exit_code else "Completed"}
            boxes = [
                {"name": box["name"], "image": box["image"], "imageID": "", "ready": False, "restartCount": 0,
                 "state": {"terminated": ended}}
                for box in pod["spec"]["containers"]
            ]  # fmt: skip
            unready = [{"type": "Ready", "status": "False"}]
            status = {"phase": phase, "conditions": unready, "containerStatuses": boxes}
            found = pod["metadata"]
            self.api.merge(kinds.POD, found["namespace"], found["name"], {"status": status}, subresource="status")
        return time.time()

    def made_at(self, kind: str, suffix: str) -> list[float]:
        """Return when the objects of a kind whose names end so were made, unix seconds."""
        found = self.metadata(kinds.BY_NAME[kind], selector=kinds.MANAGED)
        return [_made(one) for one in found if one["name"].endswith(suffix)]

    def delete(self, *, within_s: float) -> float:
        """Delete all jobs at once; return the seconds until nothing of them is left."""
        began = time.monotonic()
        for namespace in self.namespaces:
            self.api.delete_all(kinds.RLJOB, namespace)
        # Pods go last. Hundreds of questions at once would keep the cluster from deleting, and hide when it was done.
        for kind, namespace in itertools.product(reversed(_COUNTED), self.namespaces):
            self.until(functools.partial(self._has_none, kind, namespace), within_s=within_s)
        took_s = time.monotonic() - began
        assert not any(left := self.census().values()), f"made again after they were gone: {left}"
        return took_s

    def _has_none(self, kind: Kind, namespace: str) -> bool:
        return not self._num_left(kind, namespace)


_IS_READY = ("Ready", "True")


def _made(metadata: Object) -> float:
    return _seconds(metadata["creationTimestamp"])


def _seconds(text: str) -> float:
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
