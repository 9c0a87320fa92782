"""A job whose trainer has two nodes, with ZeRO 3: each rank has a half of the weights and of the optimizer's state.

Its model is tiny and its weights are random, so that two nodes of one small machine hold it while a lost one's pods
still run. A rank is rather on node-a and rather not where the other one is: one on each node while there are two, and
both on the node that is left. One rank for each node, whatever happens, would need a third.
"""

import contextlib
import json
import pathlib
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

from rljob_testing import jobs, models
from rljob_testing.cluster import whole_job
from rljob_testing.cluster.full import FullCluster
from rljob_testing.cluster.manifests import Object, change
from rljob_testing.cluster.node import Node
from rljob_testing.cluster.whole_job import Watched

# Model and data: a claim of their own, and below the folder of the volume that both nodes see.
TASK = "task"
MOUNT = "/task"
NUM_RECORDS = 64
EVERY_STEPS = 20
# After ten minutes an evicted trainer is killed, with or without a checkpoint: a drain that ends before had one.
DRAIN_S = 480.0
HOSTNAME = "kubernetes.io/hostname"


def make_task(volume: pathlib.Path) -> None:
    """Write model and data below the volume's folder, once."""
    folder = volume / TASK
    if not folder.exists():
        models.make_tiny_llama(folder / "model")
        for path in (folder / "model").iterdir():
            # Weights are written for their owner alone, and pods are someone else.
            path.chmod(0o644)
        jobs.make_task(folder, num_train=NUM_RECORDS)


def job(name: str, changes: Mapping[str, object]) -> Object:
    """Return the job; its model and data are on the claim TASK. `changes`: dotted paths below spec to values."""
    local = jobs.TinyTask(
        model=pathlib.Path("model"),
        train=pathlib.Path(MOUNT, "train.jsonl"),
        held_out=pathlib.Path(MOUNT, "held_out.jsonl"),
    )
    document: Any = jobs.manifest(local, {})
    document["metadata"] = {"name": name}
    one_thread = [{"name": "OMP_NUM_THREADS", "value": "1"}]
    # All of it fits one node.
    home = whole_job.rather_on("node-a")
    own: dict[str, object] = {
        "model.source": {"claimName": TASK, "path": "model"},
        # A second for each step: the run is not to end while something breaks.
        "algorithm.promptsPerStep": 32,
        "algorithm.groupSize": 8,
        "evaluation": {},
        "checkpoint.everySteps": EVERY_STEPS,
        "trainer.nodes": 2,
        "trainer.deepspeed.zeroStage": 3,
        "coordinator.pod.volumes": [{"name": "task", "persistentVolumeClaim": {"claimName": TASK, "readOnly": True}}],
        "coordinator.pod.volumeMounts": [{"name": "task", "mountPath": MOUNT, "readOnly": True}],
        "rollout.drainSeconds": 5,
        "verifier.pod.resources": {"limits": {"cpu": "500m"}},
        "rollout.pod.env": one_thread,
        "trainer.pod.env": one_thread,
        "coordinator.pod.affinity": home,
        "rollout.pod.affinity": home,
        "verifier.pod.affinity": home,
        "trainer.pod.affinity": {**home, "podAntiAffinity": _apart(name)},
    }
    for path, value in {**own, **changes}.items():
        change(document["spec"], path, value)
    result: Object = document
    return result


def _apart(name: str) -> Object:
    labels: Object = {"rljob.dev/job": name, "rljob.dev/role": "trainer"}
    term: Object = {"labelSelector": {"matchLabels": labels}, "topologyKey": HOSTNAME}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}


def nodes_of_ranks(job: Watched) -> dict[int, str]:
    """Return the node of each rank whose pod stays."""
    staying = job.uids("trainer")
    pods: Any = job.pods("trainer")
    index = "batch.kubernetes.io/job-completion-index"
    return {
        int(pod["metadata"]["annotations"][index]): pod["spec"].get("nodeName", "")
        for pod in pods
        if pod["metadata"]["name"] in staying
    }


def is_whole(job: Watched, *, without: str = "") -> bool:
    """Return whether every pod of the job is ready, two ranks among them, and none is on the node `without`."""
    pods = job.staying()
    roles = len(job.staying("trainer")) == 2 and len(pods) == 5
    return roles and all(pod.ready and pod.node != without for pod in pods)


@contextlib.contextmanager
def cut_off(cluster: FullCluster, node: Node) -> Iterator[None]:
    """Let nothing be heard of a node; its Node object stays, and its containers run on for themselves."""
    with cluster.cut_off(node):
        yield
    waited = cluster.kubectl("wait", "--for=condition=Ready", "--timeout=50s", f"node/{node.name}")
    assert waited.returncode == 0, waited.stderr


def drain(cluster: FullCluster, node: str) -> None:
    """Drain a node as one does before work on it. Fails with kubectl's words, also if it takes longer than DRAIN_S."""
    options = ("--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={DRAIN_S:.0f}s")
    command = cluster.plane.kubectl_command("drain", node, *options)
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * DRAIN_S)
    assert done.returncode == 0, done.stdout + done.stderr


def uncordon(cluster: FullCluster, node: str) -> None:
    """Let pods onto a node again."""
    done = cluster.kubectl("uncordon", node)
    assert done.returncode == 0, done.stderr


def volume_node(cluster: FullCluster, claim: str) -> str:
    """Return the node that the volume of a claim is on, "" while the claim is not bound."""
    found: Any = json.loads(cluster.kubectl("get", "pvc", claim, "-o", "json").stdout)
    name = found["spec"].get("volumeName")
    if not name:
        return ""
    volume: Any = json.loads(cluster.kubectl("get", "pv", name, "-o", "json").stdout)
    (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    (expression,) = term["matchExpressions"]
    (node,) = expression["values"]
    return str(node)
