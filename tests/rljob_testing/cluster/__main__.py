"""`python -m rljob_testing.cluster build|up|down|status`: a cluster for people and for `make`.

`up` gives a control plane without nodes; `up --nodes` two nodes with the project's images.
"""

import argparse
import pathlib

from rljob_testing.cluster import binaries, full, images, processes
from rljob_testing.cluster.light import LightCluster

DEFAULT = pathlib.Path("runs/cluster")


def main() -> None:
    """Do one verb on the cluster of a run folder."""
    parser = argparse.ArgumentParser(prog="rljob_testing.cluster", description=__doc__)
    parser.add_argument("verb", choices=["build", "up", "down", "status"])
    parser.add_argument("--run-dir", type=pathlib.Path, default=DEFAULT)
    parser.add_argument("--nodes", action="store_true", help="two nodes with containerd and kubelet")
    parser.add_argument("--no-images", action="store_true", help="start the nodes without the project's images")
    given = parser.parse_args()
    # A cluster with nodes is taken down as what it is, asked for or not.
    nodes = given.nodes or (given.run_dir / "node-a").exists()
    cluster = full.FullCluster(given.run_dir) if nodes else LightCluster(given.run_dir)
    if given.verb in ("build", "up"):
        for name, built in binaries.build((*binaries.TESTS, *(binaries.NODES if given.nodes else ()))):
            print(f"{name}: {'built' if built else 'found'}", flush=True)
    if given.verb == "up":
        _up(cluster, with_images=not given.no_images)
    elif given.verb == "down":
        cluster.down()
    elif given.verb == "status":
        for path in sorted((given.run_dir / "logs").glob("*.log")):
            print(f"{path.stem}: {'running' if processes.alive(given.run_dir, path.stem) else 'not running'}")


def _up(cluster: LightCluster | full.FullCluster, *, with_images: bool) -> None:
    """Start a cluster; one that did not come up is taken down again, its logs stay."""
    if isinstance(cluster, full.FullCluster) and (reason := full.unable() or full.missing()):
        raise SystemExit(reason)
    try:
        cluster.up()
        if with_images and isinstance(cluster, full.FullCluster):
            print("building and importing the images (minutes with a cold cache)", flush=True)
            images.load(cluster.nodes, (images.SLIM, images.WORKER))
    except FileExistsError:
        raise
    except BaseException:
        cluster.down()
        raise
    print(f"export KUBECONFIG={cluster.kubeconfig}")


if __name__ == "__main__":
    main()
