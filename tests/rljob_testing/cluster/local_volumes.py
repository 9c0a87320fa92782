"""Volumes that are local to a node, and a class that binds a claim once its pod has a node, as local disks have it."""

import pathlib
from collections.abc import Mapping

from rljob_testing.cluster.full import FullCluster
from rljob_testing.cluster.manifests import Object

ACCESS_MODE = "ReadWriteOncePod"


def of_each_node(cluster: FullCluster, storage_class: str, sizes: Mapping[str, str]) -> list[Object]:
    """Return the class, and a volume of each name and size on every node; their folders are made.

    The folders belong to root: the kubelet gives them to the pod's group.
    """
    objects: list[Object] = [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": storage_class},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
    ]
    for node in cluster.nodes:
        for name, size in sizes.items():
            path = folder(cluster, storage_class, node.name, name)
            path.mkdir(parents=True)
            objects.append(_volume(f"{storage_class}-{name}-{node.name}", storage_class, node.name, size, path))
    return objects


def folder(cluster: FullCluster, storage_class: str, node: str, name: str) -> pathlib.Path:
    """Return where the files of a volume are on this machine."""
    return cluster.run_dir / "local-volumes" / storage_class / node / name


def _volume(name: str, storage_class: str, node: str, size: str, path: pathlib.Path) -> Object:
    expression: Object = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": [ACCESS_MODE],
            "storageClassName": storage_class,
            "persistentVolumeReclaimPolicy": "Retain",
            "local": {"path": str(path)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}},
        },
    }
