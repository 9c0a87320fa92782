"""Many jobs at once on a cluster with stand-in kubelets: made, counted, edited, failed, deleted. Figures in seconds.

No coordinator runs in the pods. One stand-in answers for all jobs of a namespace whose connections are not encrypted;
coordinators of encrypted jobs do not answer, as in a start that waits for images.
"""

import concurrent.futures
import contextlib
import dataclasses
import datetime
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc

from rljob_api import codec, names, types
from rljob_api.wire.v1 import status_pb2_grpc
from rljob_operator import kinds
from rljob_operator.certifying import SECRET
from rljob_operator.kinds import Kind
from rljob_testing.cluster import manifests
from rljob_testing.operator_api import ClusterApi, Object

NAMESPACES = Kind("Namespace", "", "v1", "namespaces")
# What a job can have, itself included, in the order in which it is made; accounts and ConfigMaps are also others'.
OURS = (kinds.RLJOB, SECRET, *kinds.QUIET, *kinds.WORKLOADS)
# Small questions, and a list of every pod.
_POLL_S, _LOOK_S = 0.25, 2.0
_DAY_S = 86_400


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What each job is like. minimal: plain text, no policies, accounts that are there: the fewest children."""

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
        # A counter that stands still is steady here, not stalled.
        own["failurePolicy.stall.timeoutSeconds"] = _DAY_S
        if self.minimal:
            own |= {"security.tls": "off", "security.networkPolicy": False}
            own |= {f"{role}.pod.serviceAccountName": "default" for role in names.Role}
        return manifests.job(name, {**own, **(changes or {})})


class StandIn(status_pb2_grpc.RunStatusServicer):
    """Every coordinator of a namespace: says what `run` holds."""

    def __init__(self) -> None:
        """Say that the first step is done and the run goes on."""
        self.says(names.Phase.RUNNING, step=1)

    def says(self, phase: names.Phase, *, step: int) -> None:
        """Let all of them answer so from now on."""
        now = time.time()
        self.run = types.RunStatus(
            job="job", phase=phase, step=step, max_steps=4, last_progress_at=now, progress=step, checkpoint_step=step,
            checkpoint_at=now,
        )  # fmt: skip

    def Status(self, request: object, context: grpc.ServicerContext) -> Any:
        return codec.status_to(self.run)


@contextlib.contextmanager
def standing_in() -> Iterator[tuple[StandIn, str]]:
    """Yield a stand-in and its address on loopback."""
    server, stand_in = grpc.server(concurrent.futures.ThreadPoolExecutor(8)), StandIn()
    status_pb2_grpc.add_RunStatusServicer_to_server(stand_in, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield stand_in, f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """How long a burst took: until the last child of ours was made, and until the last pod was ready."""

    children: int
    children_s: float
    pods: int
    pods_s: float


class Load:
    """Jobs of one namespace. `check` fails while waiting when the operator has died."""

    def __init__(self, api: ClusterApi, namespace: str, *, check: Callable[[], object]) -> None:
        """Make the namespace."""
        self.api, self.namespace, self._check = api, namespace, check
        api.create(NAMESPACES, None, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        # A namespace gets its account and its root certificate a moment later.
        self.until(lambda: all(self.count(kind) for kind in ("ServiceAccount", "ConfigMap")), within_s=60.0)

    def until(self, holds: Callable[[], bool], *, within_s: float, every_s: float = _POLL_S) -> None:
        """Wait until something holds, asked again after `every_s`."""
        end = time.monotonic() + within_s
        while not holds():
            self._check()
            assert time.monotonic() < end, f"did not happen within {within_s:.0f} s: {self.census()}"
            time.sleep(every_s)

    def count(self, kind: str) -> int:
        """Return how many objects of a kind there are, others' included."""
        return self.api.count(kinds.BY_NAME[kind], self.namespace)

    def census(self) -> dict[str, int]:
        """Return how many objects there are by kind, those of every namespace left out."""
        found = {kind.kind: self.api.count(kind, self.namespace) for kind in (*OURS, kinds.POD)}
        return {kind: count - (kind in ("ServiceAccount", "ConfigMap")) for kind, count in found.items()}

    def create(self, shape: Shape, first: int, after: int) -> None:
        """Make jobs `job-<first>` to below `after`."""
        for number in range(first, after):
            self.api.create(kinds.RLJOB, self.namespace, shape.job(f"job-{number}"))

    def burst(self, shape: Shape, num_jobs: int, *, within_s: float) -> Created:
        """Make jobs all at once and wait until they have all they want, pods included."""
        self.create(shape, 0, num_jobs)
        self.until(lambda: self.count("Job") == num_jobs, within_s=within_s)
        self.until(lambda: self.count("Pod") == num_jobs * shape.pods, within_s=within_s)
        self.until(lambda: len(self._ready_at()) == num_jobs * shape.pods, within_s=within_s, every_s=_LOOK_S)
        first = min(_made(one) for one in self.api.metadata(kinds.RLJOB, self.namespace))
        made = [
            _made(one)
            for kind in OURS[1:]
            for one in self.api.metadata(kind, self.namespace, selector=kinds.MANAGED)
            # It protects a job that runs, so it comes after the pods.
            if not (kind.kind == "PodDisruptionBudget" and one["name"].endswith("-trainer"))
        ]
        return Created(
            children=len(made),
            children_s=max(made) - first,
            pods=num_jobs * shape.pods,
            pods_s=max(self._ready_at()) - first,
        )

    def pods(self, role: names.Role | None = None) -> list[Object]:
        """Return the pods of all jobs, of one role if it is given."""
        selector = kinds.MANAGED if role is None else f"{kinds.MANAGED},rljob.dev/role={role}"
        return self.api.list(kinds.POD, self.namespace, selector=selector)

    def _ready_at(self) -> list[float]:
        conditions = (one for pod in self.pods() for one in pod["status"].get("conditions") or ())
        return [_seconds(one["lastTransitionTime"]) for one in conditions if (one["type"], one["status"]) == _IS_READY]

    def edit(self, name: str, spec: Object) -> None:
        """Merge into the spec of a job."""
        self.api.merge(kinds.RLJOB, self.namespace, name, {"spec": spec})

    def replicas_follow(self, name: str, replicas: int, *, within_s: float) -> float:
        """Set a job's rollouts and return the seconds until its Deployment wants as many."""
        deployment, began = kinds.BY_NAME["Deployment"], time.monotonic()
        self.edit(name, {"rollout": {"replicas": replicas}})
        while self.api.get(deployment, self.namespace, f"{name}-rollout")["spec"]["replicas"] != replicas:
            self._check()
            assert time.monotonic() - began < within_s, f"the rollouts of {name} did not follow"
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
            self.api.merge(kinds.POD, self.namespace, pod["metadata"]["name"], {"status": status}, subresource="status")
        return time.time()

    def made_at(self, kind: str, suffix: str) -> list[float]:
        """Return when the objects of a kind whose names end so were made, unix seconds."""
        found = self.api.metadata(kinds.BY_NAME[kind], self.namespace, selector=kinds.MANAGED)
        return [_made(one) for one in found if one["name"].endswith(suffix)]

    def delete(self, *, within_s: float) -> float:
        """Delete all jobs at once; return the seconds until nothing of them is left."""
        began = time.monotonic()
        self.api.delete_all(kinds.RLJOB, self.namespace)
        self.until(lambda: not any(self.census().values()), within_s=within_s)
        return time.monotonic() - began


_IS_READY = ("Ready", "True")


def _made(metadata: Object) -> float:
    return _seconds(metadata["creationTimestamp"])


def _seconds(text: str) -> float:
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
