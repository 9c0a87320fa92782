"""The addition example as one applies it to a cluster: data in a ConfigMap, state on a volume that both nodes see."""

import dataclasses
import json
import pathlib
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml

from rljob_testing.cluster import images
from rljob_testing.cluster.full import FullCluster
from rljob_testing.cluster.manifests import Object, change

REPOSITORY = pathlib.Path(__file__).parents[3]
EXAMPLES = REPOSITORY / "crds" / "examples"
CHART = REPOSITORY / "charts" / "rljob-operator"
# Where the operator is installed.
SYSTEM = "rljob-system"
DATA = "addition-data"
POLL_S = 1.0
# In place of an engine, which would take gigabytes of memory and show no more about a job that cannot start.
HANGS = ("sh", "-c", "exec sleep 3600")
# On claims that no one made.
UNCLAIMED: Object = {
    "type": "Persistent",
    "state": {"claimName": "no-such-claim"},
    "checkpoints": {"claimName": "no-such-claim"},
}
_LITTLE: Object = {"requests": {"cpu": "10m"}}
# Several at once fit two nodes of two cores: else one waits for a node, and says that instead of its own trouble.
QUIET: Mapping[str, object] = {
    "storage": {"type": "Ephemeral"},
    "coordinator.pod.resources": _LITTLE,
    "rollout.pod.resources": _LITTLE,
    "trainer.pod.resources": _LITTLE,
    "verifier.pod.resources": {"limits": {"cpu": "100m"}},
    "rollout.drainSeconds": 1,
    "rollout.pod.commandPrefix": list(HANGS),
    "trainer.pod.commandPrefix": list(HANGS),
}


@dataclasses.dataclass(frozen=True, slots=True)
class PodFacts:
    """What tests ask of a pod. `container` is the runtime's id of its only container, "" before it was made."""

    name: str
    uid: str
    node: str
    ready: bool
    going: bool
    container: str
    restarts: int

    @classmethod
    def of(cls, pod: Object) -> "PodFacts":
        """Read them from a pod as the API server returns it."""
        read: Any = pod
        metadata, status = read["metadata"], read.get("status", {})
        containers = status.get("containerStatuses") or [{}]
        ready = {"type": "Ready", "status": "True"}
        return cls(
            name=metadata["name"],
            uid=metadata["uid"],
            node=read["spec"].get("nodeName", ""),
            ready=any(ready.items() <= each.items() for each in status.get("conditions", [])),
            going="deletionTimestamp" in metadata or status.get("phase") in ("Succeeded", "Failed"),
            container=containers[0].get("containerID", "").removeprefix("containerd://"),
            restarts=containers[0].get("restartCount", 0),
        )


def on_node(name: str) -> Object:
    """Return the nodeSelector of pods that must be on this node."""
    return {"kubernetes.io/hostname": name}


def rather_on(name: str) -> Object:
    """Return the affinity of pods that are on this node unless it is lost: then they have to find another."""
    wanted: Object = {"key": "kubernetes.io/hostname", "operator": "In", "values": [name]}
    preferred: Object = {"weight": 100, "preference": {"matchExpressions": [wanted]}}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}}


class Watched:
    """A job in a cluster, asked for its state again and again; `seen` holds each new summary with the time it took."""

    def __init__(
        self,
        cluster: FullCluster,
        name: str,
        *,
        namespace: str = "default",
        also: Callable[[], object] = lambda: None,
    ) -> None:
        """`also` is called with each question."""
        self._also, self.namespace = also, namespace
        self.cluster = cluster
        self.name = name
        self.seen: list[tuple[float, str]] = []
        self._began = time.monotonic()

    def get(self) -> Object:
        """Return the job as it is now."""
        body: Object = json.loads(self.kubectl("get", "rljob", self.name, "-o", "json"))
        return body

    def kubectl(self, *arguments: str) -> str:
        """Return what kubectl says in the job's namespace. Fails with its words."""
        done = self.cluster.kubectl("-n", self.namespace, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def status(self) -> Object:
        """Return its status, and note a summary that is new."""
        self._also()
        status = self.get().get("status")
        assert isinstance(status, dict)
        summary = str(status.get("summary"))
        if not self.seen or self.seen[-1][1] != summary:
            self.seen.append((round(time.monotonic() - self._began, 1), summary))
        return status

    def until(self, true: Callable[[Object], bool], deadline_s: float) -> Object:
        """Return the first status for which `true` holds; fails with the job's description when time is over."""
        end = time.monotonic() + deadline_s
        while not true(status := self.status()):
            assert time.monotonic() < end, f"{self.seen}\n{self.describe()}"
            time.sleep(POLL_S)
        return status

    def until_over(self, step_s: float) -> Object:
        """Return the status once the job is over, however long that takes; fails if no step is made for `step_s`."""
        step: object = None
        end = time.monotonic() + step_s
        while not is_over(status := self.status()):
            if status.get("step") != step:
                step, end = status.get("step"), time.monotonic() + step_s
            assert time.monotonic() < end, f"no step after {step} for {step_s:g} s: {self.seen}\n{self.describe()}"
            time.sleep(POLL_S)
        return status

    def pods(self, role: str | None = None) -> list[Object]:
        """Return its pods, of one role or all."""
        selector = f"rljob.dev/job={self.name}" + (f",rljob.dev/role={role}" if role else "")
        items: list[Object] = json.loads(self.kubectl("get", "pods", "-l", selector, "-o", "json"))["items"]
        return items

    def step(self) -> int:
        """Return the last finished step that the job's status shows; 0 before the first."""
        step = self.status().get("step") or 0
        assert isinstance(step, int)
        return step

    def staying(self, *roles: str) -> list["PodFacts"]:
        """Return the pods of some roles, or all, that are not on their way out."""
        found = [PodFacts.of(pod) for role in roles or (None,) for pod in self.pods(role)]
        return [pod for pod in found if not pod.going]

    def uids(self, *roles: str) -> dict[str, str]:
        """Return name and uid of the pods that `staying` returns."""
        return {pod.name: pod.uid for pod in self.staying(*roles)}

    def has_fresh(self, role: str, old: Mapping[str, str]) -> bool:
        """Return whether a pod of a role is ready that was not among the `old` ones, by uid."""
        return any(pod.ready and pod.uid not in old.values() for pod in self.staying(role))

    def one(self, role: str) -> "PodFacts":
        """Return the one pod of a role that stays."""
        (found,) = self.staying(role)
        return found

    def patch(self, spec: Object) -> None:
        """Merge into the spec. Fails with the server's words."""
        self.kubectl("patch", "rljob", self.name, "--type=merge", "-p", json.dumps({"spec": spec}))

    def delete_pod(self, name: str, *options: str) -> None:
        """Delete a pod without waiting for its end."""
        self.kubectl("delete", "pod", name, "--wait=false", *options)

    def describe(self) -> str:
        """Return what a person would look at next: the job, its pods, the end of their logs."""
        parts = [self.kubectl("describe", "rljob", self.name)]
        parts.append(self.kubectl("get", "pods", "-o", "wide", "-l", f"rljob.dev/job={self.name}"))
        for pod in self.pods():
            metadata = pod["metadata"]
            assert isinstance(metadata, dict)
            name = str(metadata["name"])
            parts.append(f"--- {name}\n{self.cluster.kubectl('-n', self.namespace, 'logs', name, '--tail=15').stdout}")
        return "\n".join(parts)


def condition(status: Object, kind: str) -> Object:
    """Return a condition of a job's status; one without status, reason and message if it is not there yet."""
    known = status.get("conditions") or []
    assert isinstance(known, list)
    found = (one for one in known if isinstance(one, dict) and one["type"] == kind)
    return next(found, {"type": kind, "status": "", "reason": "", "message": ""})


def holds(kind: str) -> Callable[[Object], bool]:
    """Return whether a condition is True, as a question to a status."""
    return lambda status: condition(status, kind)["status"] == "True"


def is_over(status: Object) -> bool:
    """Return whether a job has ended, well or not."""
    return holds("Complete")(status) or holds("Failed")(status)


def install(cluster: FullCluster, *settings: str) -> "subprocess.CompletedProcess[str]":
    """Install the chart with the test's images, or upgrade it to other settings (`key=value`); wait until it is up."""
    values = [f"--set={setting}" for setting in (f"global.imageRegistry={images.REGISTRY}", *settings)]
    options = (f"--namespace={SYSTEM}", "--create-namespace", *values, "--wait", "--timeout=180s")
    return cluster.helm("upgrade", "--install", "rljob", str(CHART), *options)


def addition(name: str, changes: Mapping[str, object], *, example: str = "addition-cpu") -> Object:
    """Return an addition example under a name, with its data and a claim of that name mounted, and `changes`."""
    document: Object = yaml.safe_load((EXAMPLES / f"{example}.yaml").read_text())
    document["metadata"] = {"name": name}
    spec = document["spec"]
    assert isinstance(spec, dict)
    mounted = {
        "volumes": [{"name": "data", "configMap": {"name": DATA}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data/data"}],
    }
    # Two cores for everything: one thread each for sampling and training, as the local runner would give them.
    one_thread = [{"name": "OMP_NUM_THREADS", "value": "1"}]
    own: dict[str, object] = {
        # Its volume is a folder that both nodes see: what checkpoints may be on, and state too here.
        "storage": {"type": "Persistent", "state": {"claimName": name}, "checkpoints": {"claimName": name}},
        # Small steps, and rewards of the tests' own that may be the same for every answer.
        "data.filterGroups.enabled": False,
        "async.maxOffPolicySteps": 1,
        "coordinator.pod": mounted,
        "rollout.pod.env": one_thread,
        "trainer.pod.env": one_thread,
    }
    for path, value in {**own, **changes}.items():
        change(spec, path, value)
    return document


def data() -> Object:
    """Return the example's data as it is mounted."""
    files: Object = {path.name: path.read_text() for path in sorted((EXAMPLES / "data").glob("addition-*.jsonl"))}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": DATA}, "data": files}


def surroundings(name: str, folder: pathlib.Path) -> list[Object]:
    """Return what a job of this name needs in its namespace: the data, and a claim bound to a folder of the nodes."""
    size: Object = {"storage": "4Gi"}
    volume: Object = {
        "capacity": size,
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "hostPath": {"path": str(folder), "type": "Directory"},
        "claimRef": {"namespace": "default", "name": name},
    }
    claim: Object = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "volumeName": name,
        "resources": {"requests": size},
    }
    return [
        data(),
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": claim},
    ]


def apply(cluster: FullCluster, objects: Sequence[Object], *, namespace: str = "default") -> None:
    """Apply objects. Fails with the server's words."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
    done = cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=text)
    assert done.returncode == 0, done.stderr
