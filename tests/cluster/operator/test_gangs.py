"""Gangs on the real kube-scheduler, with its gates on: nodes are objects without a kubelet, pods are the builders'.

Whatever the order in which the pods of three trainers arrive, a trainer has all of its nodes or none.
"""

import contextlib
import os
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rljob_api import cluster_placement, enums, resolve
from rljob_operator.kube import kinds
from rljob_operator.kube.kinds import Kind
from rljob_operator.resources import gangs, workloads
from rljob_operator.resources.inputs import Inputs
from rljob_operator.settings import GangScheduler, JobSettings
from rljob_testing.cluster.light import LightCluster
from rljob_testing.cluster.scheduled import NAMESPACE, renew_nodes
from rljob_testing.operator_api import ClusterApi
from rljob_testing.operator_runs import operator_job

NUM_ORDERS = int(os.environ.get("RLJOB_GANG_ORDERS", "20"))
# One pod a node: any two of these jobs fit, the three do not.
SIZES = {"a": 4, "b": 4, "c": 2}
_WITHIN_S = 180.0


def inputs_of(name: str, *, nodes: int, gang: GangScheduler) -> Inputs:
    """Return what builders get of a job whose trainer pods fill a node each."""
    pod = {"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    job = operator_job({"trainer": {"nodes": nodes, "pod": pod}})
    metadata = job.metadata.model_copy(update={"name": name, "uid": f"uid-{name}"})
    job = job.model_copy(update={"metadata": metadata})
    configs = resolve.resolve(job, cluster_placement.cluster_placement(job, verifier_cores=1))
    images = dict.fromkeys(enums.STANDARD_ROLES, "example/rljob:1")
    return Inputs(job=job, configs=configs, images=images, settings=JobSettings(gang_scheduler=gang))


def objects_of(
    name: str, number: int, *, nodes: int, gang: GangScheduler = "native"
) -> list[tuple[Kind, dict[str, Any]]]:
    """Return the group and the pods of one trainer attempt, without an owner: no job of that name exists."""
    inputs = inputs_of(name, nodes=nodes, gang=gang)
    group: Any = gangs.pod_group(inputs, attempt=number)
    template: Any = workloads.trainer_job(inputs, attempt=number)["spec"]
    # The job's own account is not there.
    spec = {**template["template"]["spec"], "serviceAccountName": "default"}
    labels = {**template["template"]["metadata"]["labels"], "job-of-test": name}
    pods = [{"metadata": {"name": f"{name}-{number}-{rank}", "labels": labels}, "spec": spec} for rank in range(nodes)]
    groups = [] if group is None else [{**group, "metadata": {"name": group["metadata"]["name"]}}]
    return [*((kinds.POD_GROUPS["native"], each) for each in groups), *((kinds.POD, pod) for pod in pods)]


def arrive(api: ClusterApi, arrivals: list[tuple[Kind, dict[str, Any]]]) -> None:
    for kind, body in arrivals:
        api.create(kind, NAMESPACE, {"apiVersion": kind.api_version, "kind": kind.kind, **body})


def placed(api: ClusterApi) -> tuple[dict[str, int], bool]:
    """Return how many pods of each job have a node, and whether the scheduler has tried all the others."""
    counts, tried = dict.fromkeys(SIZES, 0), True
    for pod in api.list(kinds.POD, NAMESPACE):
        has_node = bool(pod["spec"].get("nodeName"))
        counts[pod["metadata"]["labels"]["job-of-test"]] += has_node
        conditions = pod["status"].get("conditions") or ()
        tried &= has_node or any(each["type"] == "PodScheduled" for each in conditions)
    return counts, tried


@pytest.fixture
def api(scheduled: LightCluster) -> Iterator[ClusterApi]:
    with contextlib.closing(ClusterApi(scheduled)) as opened:
        yield opened


@pytest.mark.timeout(300 + 10 * NUM_ORDERS)
def test_no_trainer_ever_holds_a_part_of_its_nodes_whatever_the_order_of_arrival(api: ClusterApi) -> None:
    rng = random.Random(7)
    winners = set[str]()
    began = time.monotonic()
    for number in range(1, NUM_ORDERS + 1):
        arrivals = [each for name, size in SIZES.items() for each in objects_of(name, number, nodes=size)]
        rng.shuffle(arrivals)
        renew_nodes(api)
        arrive(api, arrivals)
        (counts, tried), end = placed(api), time.monotonic() + _WITHIN_S
        # Two jobs fit, whichever came first; a node is never given back here, so a part would stay one.
        while not tried or sum(counts[name] == size for name, size in SIZES.items()) < 2:
            assert time.monotonic() < end, f"order {number}: {counts}"
            counts, tried = placed(api)
        assert all(counts[name] in (0, size) for name, size in SIZES.items()), f"order {number}: {counts}"
        winners.add("".join(name for name, count in counts.items() if count))
        _clear(api)
    print(f"{NUM_ORDERS} orders in {time.monotonic() - began:.0f} s; who ran: {sorted(winners)}")
    assert len(winners) > 1, "the order of arrival decided nothing"


def test_without_a_gang_the_same_pods_are_placed_in_part(api: ClusterApi) -> None:
    of_each = [objects_of(name, 1, nodes=size, gang="none") for name, size in SIZES.items()]
    renew_nodes(api)
    # The last job's pods come first, so that neither of the others can be whole beside the other.
    arrive(api, [each for objects in reversed(of_each) for each in objects])
    (counts, tried), end = placed(api), time.monotonic() + _WITHIN_S
    while not (tried and any(0 < counts[name] < size for name, size in SIZES.items())):
        assert time.monotonic() < end, counts
        counts, tried = placed(api)
    _clear(api)


def _clear(api: ClusterApi) -> None:
    """Delete all pods at once, as no kubelet would confirm their end, and then the groups."""
    api.send("DELETE", f"{kinds.POD.path(NAMESPACE)}?gracePeriodSeconds=0")
    api.delete_all(kinds.POD_GROUPS["native"], NAMESPACE)
    end = time.monotonic() + _WITHIN_S
    while api.list(kinds.POD, NAMESPACE):
        assert time.monotonic() < end, "pods are not gone"
