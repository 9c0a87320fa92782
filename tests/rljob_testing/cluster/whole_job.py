"""The addition example as one applies it to a cluster: data in a ConfigMap, state on a volume that both nodes see."""

import json
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence

import yaml

from rljob_testing.cluster.full import FullCluster
from rljob_testing.cluster.manifests import Object, change

EXAMPLES = pathlib.Path(__file__).parents[3] / "crds" / "examples"
DATA = "addition-data"
POLL_S = 1.0


class Watched:
    """A job in a cluster, asked for its state again and again; `seen` holds each new summary with the time it took."""

    def __init__(self, cluster: FullCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.seen: list[tuple[float, str]] = []
        self._began = time.monotonic()

    def get(self) -> Object:
        """Return the job as it is now."""
        done = self.cluster.kubectl("get", "rljob", self.name, "-o", "json")
        assert done.returncode == 0, done.stderr
        body: Object = json.loads(done.stdout)
        return body

    def status(self) -> Object:
        """Return its status, and note a summary that is new."""
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

    def pods(self, role: str | None = None) -> list[Object]:
        """Return its pods, of one role or all."""
        selector = f"rljob.dev/job={self.name}" + (f",rljob.dev/role={role}" if role else "")
        done = self.cluster.kubectl("get", "pods", "-l", selector, "-o", "json")
        assert done.returncode == 0, done.stderr
        items: list[Object] = json.loads(done.stdout)["items"]
        return items

    def describe(self) -> str:
        """Return what a person would look at next: the job, its pods, the end of their logs."""
        parts = [self.cluster.kubectl("describe", "rljob", self.name).stdout]
        selector = f"rljob.dev/job={self.name}"
        parts.append(self.cluster.kubectl("get", "pods", "-o", "wide", "-l", selector).stdout)
        for pod in self.pods():
            metadata = pod["metadata"]
            assert isinstance(metadata, dict)
            name = str(metadata["name"])
            parts.append(f"--- {name}\n{self.cluster.kubectl('logs', name, '--tail=15').stdout}")
        return "\n".join(parts)


def addition(name: str, changes: Mapping[str, object]) -> Object:
    """Return the addition example under a name, with its data and a claim of that name mounted, and `changes`."""
    document: Object = yaml.safe_load((EXAMPLES / "addition-cpu.yaml").read_text())
    document["metadata"] = {"name": name}
    spec = document["spec"]
    assert isinstance(spec, dict)
    data = {
        "volumes": [{"name": "data", "configMap": {"name": DATA}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data/data"}],
    }
    # Two cores for everything: one thread each for sampling and training, as the local runner would give them.
    one_thread = [{"name": "OMP_NUM_THREADS", "value": "1"}]
    own: dict[str, object] = {
        "storage": {"claimName": name},
        "coordinator.pod": data,
        "rollout.pod.env": one_thread,
        "trainer.pod.env": one_thread,
    }
    for path, value in {**own, **changes}.items():
        change(spec, path, value)
    return document


def surroundings(name: str, folder: pathlib.Path) -> list[Object]:
    """Return what a job of this name needs in its namespace: the data, and a claim bound to a folder of the nodes."""
    files = {path.name: path.read_text() for path in sorted((EXAMPLES / "data").glob("addition-*.jsonl"))}
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
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": DATA}, "data": dict(files)},
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": claim},
    ]


def apply(cluster: FullCluster, objects: Sequence[Object]) -> None:
    """Apply objects. Fails with the server's words."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
    done = cluster.kubectl("apply", "-f", "-", stdin=text)
    assert done.returncode == 0, done.stderr
