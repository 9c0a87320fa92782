"""Where the programs of a two-node cluster run and what is left of them, with stand-ins for those of Kubernetes.

Namespaces, containerd, etcd and the relay are real. The stand-ins write down their name and their network, and wait.
"""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from rljob_testing.cluster import cgroups, full, namespaces, preconditions, processes

C, D = namespaces.Place("c"), namespaces.Place("d")
STAND_INS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "coredns",
    "kubectl",
    "helm",
)
_SCRIPT = """\
#!/bin/sh
echo "$(basename "$0") $(readlink /proc/self/ns/net)" >> {log}
[ "$(basename "$0")" = kubectl ] || exec sleep 600
"""


@pytest.fixture
def cluster(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[full.FullCluster]:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in STAND_INS:
        (programs / name).write_text(_SCRIPT.format(log=tmp_path / "started"))
        (programs / name).chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(programs))
    machine = preconditions.this_machine(images_ready=True)
    if reasons := preconditions.unfit(machine):
        pytest.skip("; ".join(reasons))
    if machine.missing:
        could = os.environ.get("CI") == "true" and machine.apt and machine.go
        (pytest.fail if could else pytest.skip)("; ".join(machine.missing))
    made = full.FullCluster(tmp_path / "run", (C, D))
    try:
        made.up()
        yield made
    finally:
        made.down()


def _network(place: namespaces.Place) -> str:
    return f"net:[{os.stat(f'/run/netns/{place.namespace}').st_ino}]"


def test_programs_run_in_their_namespaces_and_a_loopback_port_leads_inside(
    cluster: full.FullCluster, tmp_path: pathlib.Path
) -> None:
    server = (
        "import socket\n"
        f"listening = socket.create_server(('{C.address}', {cluster.plane.port}))\n"
        "print('listening', flush=True)\n"
        "listening.accept()[0].sendall(b'inside')\n"
    )
    inside = subprocess.Popen([*C.enter, sys.executable, "-c", server], stdout=subprocess.PIPE)
    with inside:
        assert inside.stdout is not None
        assert inside.stdout.readline() == b"listening\n"
        with socket.create_connection(("127.0.0.1", cluster.plane.port), timeout=10) as outside:
            assert outside.recv(6) == b"inside"
    # A stand-in writes a moment after it was started.
    deadline = time.monotonic() + 10
    expected = {(name, _network(C)) for name in STAND_INS if name not in ("kubectl", "helm")}
    expected |= {("kubelet", _network(D)), ("kube-proxy", _network(D))}
    while True:
        started = {tuple(line.split()) for line in (tmp_path / "started").read_text().splitlines()}
        found = {(name, network) for name, network in started if name != "kubectl"}
        if found == expected:
            break
        assert time.monotonic() < deadline, found ^ expected
        time.sleep(0.05)


def test_nothing_is_left_of_a_cluster_that_was_taken_down(cluster: full.FullCluster) -> None:
    names = [path.name for path in (cluster.run_dir / "pids").iterdir()]
    assert {"node-c-containerd", "node-d-kubelet", "etcd", "relay"} <= set(names)
    cluster.down()
    assert not [name for name in names if processes.alive(cluster.run_dir, name)]
    assert not [place for place in (C, D) if pathlib.Path("/run/netns", place.namespace).exists()]
    assert str(cluster.run_dir) not in pathlib.Path("/proc/self/mountinfo").read_text()
    assert not [node for node in cluster.nodes if list(cgroups.ROOT.glob(f"*/{node.cgroup}"))]
    assert not [node for node in cluster.nodes if node.runtime.root.exists()]


def test_cluster_that_was_killed_is_cleared_away_by_the_next_one_in_its_place(
    cluster: full.FullCluster, tmp_path: pathlib.Path
) -> None:
    volume = cluster.nodes[0].folder / "volume"
    volume.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(volume)], check=True, timeout=30)
    for name in [path.name for path in (cluster.run_dir / "pids").iterdir()]:
        pid = int((cluster.run_dir / "pids" / name).read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    other = full.FullCluster(tmp_path / "other", (C, D))
    try:
        other.up()
        assert str(cluster.run_dir) not in pathlib.Path("/proc/self/mountinfo").read_text()
        cluster.down()
        assert processes.alive(other.run_dir, "node-c-containerd"), "taken down by one that no longer holds the place"
    finally:
        other.down()
    assert not [place for place in (C, D) if pathlib.Path("/run/netns", place.namespace).exists()]


def test_second_cluster_in_the_same_place_is_refused(cluster: full.FullCluster, tmp_path: pathlib.Path) -> None:
    other = full.FullCluster(tmp_path / "other", (C, D))
    with pytest.raises(FileExistsError, match="stop the cluster that runs in it"):
        other.up()
    other.down()
    assert processes.alive(cluster.run_dir, "node-c-containerd"), "taken down by one that had not come up"
