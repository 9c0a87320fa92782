"""The light flavour with the real kube-scheduler, gangs switched on, and nodes that are objects without a kubelet."""

import contextlib
import pathlib
import time
import uuid
from collections.abc import Iterator

from rljob_operator.kube.kinds import Kind
from rljob_testing.cluster import binaries, processes
from rljob_testing.cluster.light import LOOPBACK, LightCluster, Network
from rljob_testing.operator_api import ClusterApi

PROGRAMS = (*binaries.LIGHT, "kube-scheduler")
NUM_NODES, NAMESPACE = 8, "default"
NODE = Kind("Node", "", "v1", "nodes")
_ACCOUNT = Kind("ServiceAccount", "", "v1", "serviceaccounts")
_GATES = {"feature-gates": "GenericWorkload=true,GangScheduling=true"}
# A node holds one pod that asks for a processor.
_CAPACITY = {"cpu": "1", "memory": "64Gi", "pods": "10", "ephemeral-storage": "1Ti"}
_WITHIN_S = 240.0


@contextlib.contextmanager
def scheduled(folder: pathlib.Path) -> Iterator[LightCluster]:
    """Yield the cluster; its nodes come by `renew_nodes`. Raises MissingProgramError, NotReadyError."""
    server = {**_GATES, "runtime-config": "scheduling.k8s.io/v1alpha2=true"}
    # No kubelet says that a node lives; after a minute nothing would be placed any more.
    manager = {**_GATES, "node-monitor-grace-period": "24h"}
    cluster = LightCluster(folder, Network(flags={"kube-apiserver": server, "kube-controller-manager": manager}))
    try:
        authority = cluster.prepare()
        authority.client("scheduler", "system:kube-scheduler")
        kubeconfig = cluster.write_kubeconfig("scheduler", LOOPBACK)
        cluster.launch()
        flags = {"kubeconfig": str(kubeconfig), "leader-elect": "false", "secure-port": "0", **_GATES}
        command = [str(binaries.find("kube-scheduler")), *(f"--{key}={value}" for key, value in flags.items())]
        processes.start(cluster.run_dir, "kube-scheduler", command)
        api = ClusterApi(cluster)
        end = time.monotonic() + _WITHIN_S
        while not api.list(_ACCOUNT, NAMESPACE):
            assert time.monotonic() < end, "the namespace has no account"
        api.close()
        yield cluster
    finally:
        cluster.down()


def renew_nodes(api: ClusterApi) -> None:
    """Put NUM_NODES empty nodes, under names never used before, in the place of those that are there.

    The scheduler may count a pod that is gone, above all one deleted while its gang waited, and leave that pod's node
    empty for minutes; a node of a new name has no such past.
    """
    api.delete_all(NODE, "")
    ready = {"type": "Ready", "status": "True"}
    status = {"capacity": _CAPACITY, "allocatable": _CAPACITY, "conditions": [ready]}
    for _ in range(NUM_NODES):
        name = f"node-{uuid.uuid4().hex[:8]}"
        api.create(NODE, None, {"metadata": {"name": name}})
        api.merge(NODE, "", name, {"status": status}, subresource="status")
