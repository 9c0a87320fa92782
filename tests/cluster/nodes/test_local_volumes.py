"""Claims of a class that binds them to a disk of the node that their pod gets: each role's volume is where the role is.

The coordinator and the trainer are rather on different nodes, and no engine is started. Disks of both nodes fit both
claims.
"""

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from rljob_testing.cluster import images, local_volumes, two_ranks, whole_job
from rljob_testing.cluster.full import FullCluster
from rljob_testing.cluster.manifests import Object
from rljob_testing.cluster.whole_job import Watched, condition

NAME = "local"
BOUND_S, NAMED_S, BACK_S = 300.0, 120.0, 300.0
SIZES = {"state": "1Gi", "checkpoints": "2Gi"}
NODES = {"state": "node-b", "checkpoints": "node-a"}
JOB: dict[str, object] = {
    **whole_job.QUIET,
    "storage": {
        "type": "Persistent",
        **{
            name: {"size": size, "storageClassName": NAME, "accessMode": local_volumes.ACCESS_MODE}
            for name, size in SIZES.items()
        },
    },
    "coordinator.pod.affinity": whole_job.rather_on(NODES["state"]),
    "trainer.pod.affinity": whole_job.rather_on(NODES["checkpoints"]),
}


@pytest.fixture(scope="module")
def job(operator: FullCluster) -> Iterator[Watched]:
    """The job, once the pods of all claims have a node and the coordinator is ready."""
    disks = local_volumes.of_each_node(operator, NAME, SIZES)
    whole_job.apply(operator, [*disks, whole_job.data(), whole_job.addition(NAME, JOB)])
    watched = Watched(operator, NAME)
    try:
        watched.until(lambda _: bool(watched.staying("coordinator")) and watched.one("coordinator").ready, BOUND_S)
        watched.until(lambda _: bool(watched.staying("trainer") and watched.one("trainer").container), BOUND_S)
        yield watched
    finally:
        operator.kubectl("delete", "rljob", NAME, "--wait=false")


def _claim(job: Watched, name: str) -> str:
    metadata: Any = job.get()["metadata"]
    return f"{NAME}-{name}-{metadata['uid'][:8]}"


def _ledger(job: Watched) -> pathlib.Path:
    metadata: Any = job.get()["metadata"]
    disk = local_volumes.folder(job.cluster, NAME, NODES["state"], "state")
    return disk / metadata["uid"] / "ledger.sqlite"


def test_each_volume_is_on_the_node_of_its_own_role(job: Watched) -> None:
    volumes = {name: two_ranks.volume_node(job.cluster, _claim(job, name)) for name in SIZES}
    pods = {"state": job.one("coordinator").node, "checkpoints": job.one("trainer").node}
    assert volumes == pods == NODES, job.describe()


def test_a_second_pod_does_not_get_a_volume_of_one_pod(job: Watched) -> None:
    other = "another"
    pod: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": other},
        "spec": {
            "containers": [{"name": "other", "image": images.SLIM.name, "command": list(whole_job.HANGS)}],
            "volumes": [{"name": "state", "persistentVolumeClaim": {"claimName": _claim(job, "state")}}],
        },
    }
    whole_job.apply(job.cluster, [pod])
    try:
        waited = job.cluster.kubectl(
            "wait", "--for=jsonpath={.status.conditions[0].reason}=Unschedulable", "--timeout=50s", f"pod/{other}"
        )
        assert waited.returncode == 0, waited.stderr
        assert "ReadWriteOncePod" in job.kubectl("get", "pod", other, "-o", "jsonpath={.status.conditions[0].message}")
    finally:
        job.delete_pod(other, "--grace-period=0", "--force")


def test_coordinator_waits_for_the_node_of_its_volume_and_finds_its_ledger_there(job: Watched) -> None:
    ledger, old = _ledger(job), job.uids("coordinator")
    inode = ledger.stat().st_ino
    cordoned = job.cluster.kubectl("cordon", NODES["state"])
    assert cordoned.returncode == 0, cordoned.stderr
    try:
        job.delete_pod(job.one("coordinator").name)

        def is_named(status: Object) -> bool:
            scheduled = condition(status, "PodsScheduled")
            return scheduled["status"] == "False" and f"{NAME}-coordinator-0" in str(scheduled["message"])

        job.until(is_named, NAMED_S)
        assert [pod.node for pod in job.staying("coordinator")] == [""]
    finally:
        two_ranks.uncordon(job.cluster, NODES["state"])
    job.until(lambda _: job.has_fresh("coordinator", old), BACK_S)
    assert job.one("coordinator").node == NODES["state"]
    assert ledger.stat().st_ino == inode
