"""`python -m rljob_testing.cluster build|up|down|status`: the light cluster for people and for `make`."""

import argparse
import pathlib

from rljob_testing.cluster import binaries, processes
from rljob_testing.cluster.light import LightCluster

DEFAULT = pathlib.Path("runs/cluster")
NAMES = ("etcd", "kube-apiserver", "kube-controller-manager")


def main() -> None:
    """Do one verb on the cluster of a run folder."""
    parser = argparse.ArgumentParser(prog="rljob_testing.cluster", description=__doc__)
    parser.add_argument("verb", choices=["build", "up", "down", "status"])
    parser.add_argument("--run-dir", type=pathlib.Path, default=DEFAULT)
    given = parser.parse_args()
    cluster = LightCluster(given.run_dir)
    if given.verb in ("build", "up"):
        for name, built in binaries.build(binaries.LIGHT):
            print(f"{name}: {'built' if built else 'found'}")
    if given.verb == "up":
        cluster.up()
        print(f"export KUBECONFIG={cluster.kubeconfig}")
    elif given.verb == "down":
        cluster.down()
    elif given.verb == "status":
        for name in NAMES:
            print(f"{name}: {'running' if processes.alive(cluster.run_dir, name) else 'not running'}")


if __name__ == "__main__":
    main()
