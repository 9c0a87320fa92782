"""`python -m rljob_testing.cluster build|up|down|status|cuda-image`: a cluster for people and for `make`.

`up` gives a control plane without nodes; `up --nodes` two nodes with the project's images. `build --nodes` makes what
that needs, programs and images, and where a machine cannot hold nodes it says why and builds the rest. `cuda-image`
builds the worker's image for GPUs, 20 GB of disk, which no cluster of ours can run.
"""

import argparse
import pathlib
import time

from rljob_testing.cluster import binaries, full, images, preconditions, processes
from rljob_testing.cluster.light import LightCluster

DEFAULT = pathlib.Path("runs/cluster")


def main() -> None:
    """Do one verb on the cluster of a run folder."""
    parser = argparse.ArgumentParser(prog="rljob_testing.cluster", description=__doc__)
    parser.add_argument("verb", choices=["build", "up", "down", "status", "cuda-image"])
    parser.add_argument("--run-dir", type=pathlib.Path, default=DEFAULT)
    parser.add_argument("--nodes", action="store_true", help="two nodes with containerd and kubelet")
    parser.add_argument("--no-images", action="store_true", help="start the nodes without the project's images")
    given = parser.parse_args()
    if given.verb == "cuda-image":
        began = time.monotonic()
        print(f"{images.WORKER_CUDA.name}: {images.cuda_image()}, built in {time.monotonic() - began:.0f} s")
        return
    # A cluster with nodes is taken down as what it is, asked for or not.
    nodes = given.nodes or (given.run_dir / "node-a").exists()
    if given.verb in ("build", "up"):
        nodes = _build(nodes=nodes, with_images=not given.no_images)
        if given.nodes and given.verb == "up" and not nodes:
            raise SystemExit(1)
    template = images.ready() if given.verb == "up" and nodes and not given.no_images else None
    cluster = full.FullCluster(given.run_dir, template=template) if nodes else LightCluster(given.run_dir)
    if given.verb == "up":
        _up(cluster)
    elif given.verb == "down":
        cluster.down()
    elif given.verb == "status":
        for path in sorted((given.run_dir / "logs").glob("*.log")):
            print(f"{path.stem}: {'running' if processes.alive(given.run_dir, path.stem) else 'not running'}")


def _build(*, nodes: bool, with_images: bool) -> bool:
    """Build programs, and images for nodes; return whether nodes can run here."""
    machine = preconditions.this_machine(images_ready=not with_images or images.ready() is not None)
    reasons = preconditions.unmet(machine) if nodes else []
    for reason in reasons:
        print(f"no nodes: {reason}", flush=True)
    possible = nodes and not reasons
    for name, built in binaries.build((*binaries.TESTS, *(binaries.NODES if possible else ()))):
        print(f"{name}: {'built' if built else 'found'}", flush=True)
    if possible and with_images:
        began = time.monotonic()
        print("images of this checkout (minutes, unless they are there)", flush=True)
        print(f"{images.template()}: {time.monotonic() - began:.0f} s", flush=True)
    return possible


def _up(cluster: LightCluster | full.FullCluster) -> None:
    """Start a cluster; one that did not come up is taken down again, its logs stay."""
    try:
        cluster.up()
    except FileExistsError:
        raise
    except BaseException:
        cluster.down()
        raise
    print(f"export KUBECONFIG={cluster.kubeconfig}")


if __name__ == "__main__":
    main()
