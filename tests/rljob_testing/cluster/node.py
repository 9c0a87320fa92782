"""One node: containerd, kubelet and kube-proxy in a network namespace of its own, with a cgroup of its own.

Images stay in the cache folder from cluster to cluster; everything else lies in the run folder and goes with it.
"""

import contextlib
import json
import pathlib
import shutil
import subprocess
from collections.abc import Sequence

from rljob_testing.cluster import binaries, cgroups, namespaces, processes

RUNTIME_READY_S = 30.0
CTR_S = 900.0
PAUSE = "rljob.test/pause:1"
# A socket's path may have 107 characters, fewer than some run folders.
_SOCKETS = pathlib.Path("/run/rljob-test")

_CONTAINERD = """\
version = 2
root = "{root}"
state = "{state}"
disabled_plugins = ["io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs"]
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{state}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # Raising a score needs CAP_SYS_RESOURCE, which root in a container or a small machine may lack.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      Root = "{state}/runc"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{cni}"
"""


class Node:
    """A node by its letter; `pki` holds `node-<letter>.crt` and the CA."""

    def __init__(self, place: namespaces.Place, run_dir: pathlib.Path) -> None:
        self.place = place
        self.name = f"node-{place.letter}"
        self.run_dir = run_dir
        self.folder = run_dir / self.name
        self.socket = _SOCKETS / f"{self.name}.sock"
        self.cgroup = f"rljob-{self.name}"
        self.images = binaries.cache_dir() / "nodes" / place.letter

    def start_runtime(self) -> None:
        """Start containerd and wait until it answers. Raises NotReadyError."""
        for folder in (self.folder / "cni", self.folder / "state", self.images, _SOCKETS):
            folder.mkdir(parents=True, exist_ok=True)
        cgroups.create(self.cgroup)
        (self.folder / "cni" / "10-pods.conflist").write_text(json.dumps(self._cni()))
        config = self.folder / "containerd.toml"
        values = {"root": self.images, "state": self.folder / "state", "socket": self.socket}
        config.write_text(_CONTAINERD.format(**values, cni=self.folder / "cni", pause=PAUSE))
        self._start("containerd", "--config", str(config))
        name = f"{self.name}-containerd"
        processes.wait_until(self.run_dir, name, lambda: self._ctr("version").returncode == 0, RUNTIME_READY_S)

    def start_kubelet(self, dns: str) -> None:
        """Start the kubelet, the first time or again after a stop."""
        config = self.folder / "kubelet.json"
        config.write_text(json.dumps(self._kubelet(dns)))
        (self.folder / "resolv.conf").touch()
        flags = {
            "config": str(config),
            "kubeconfig": str(self.run_dir / f"{self.name}.kubeconfig"),
            "root-dir": str(self.folder / "kubelet"),
            "cert-dir": str(self.folder / "kubelet" / "pki"),
            "hostname-override": self.name,
            "node-ip": self.place.address,
        }
        self._start("kubelet", *(f"--{key}={value}" for key, value in flags.items()))

    def stop_kubelet(self) -> None:
        """Stop the kubelet; the pods run on, as on a node that lost its agent."""
        processes.stop(self.run_dir, f"{self.name}-kubelet")

    def start_proxy(self) -> None:
        """Start kube-proxy. Its conntrack settings are the machine's, so they are left alone."""
        flags = {
            "kubeconfig": str(self.run_dir / "proxy.kubeconfig"),
            "proxy-mode": "nftables",
            "hostname-override": self.name,
            "cluster-cidr": str(namespaces.PODS),
            "conntrack-max-per-core": "0",
            "conntrack-tcp-timeout-established": "0s",
            "conntrack-tcp-timeout-close-wait": "0s",
        }
        self._start("kube-proxy", *(f"--{key}={value}" for key, value in flags.items()))

    def has_image(self, name: str, digest: str) -> bool:
        """Return whether the runtime holds an image with this label of its source."""
        # One filter whose parts must all hold; filters of their own would be alternatives.
        done = self._ctr("images", "ls", f'name=={name},labels."rljob.test/source"=={digest}', "-q")
        return name in done.stdout.split()

    def import_image(self, archive: pathlib.Path, name: str, digest: str) -> None:
        """Import an image archive. Raises OSError."""
        self._checked("images", "import", "--snapshotter=overlayfs", str(archive))
        self._checked("images", "label", name, f"rljob.test/source={digest}")

    def down(self) -> None:
        """End pods, containers and processes of this node; images stay."""
        for name in ("kube-proxy", "kubelet"):
            processes.stop(self.run_dir, f"{self.name}-{name}")
        cgroups.kill(self.cgroup)
        if processes.alive(self.run_dir, f"{self.name}-containerd"):
            for container in self._ctr("containers", "ls", "-q").stdout.split():
                self._ctr("tasks", "delete", "--force", container)
                self._ctr("containers", "delete", container)
        for pid in _running_with(str(self.socket)):
            processes.end(pid)
        processes.stop(self.run_dir, f"{self.name}-containerd")
        _unmount_below(self.folder)
        cgroups.delete(self.cgroup)
        for left in _SOCKETS.glob(f"{self.name}.sock*"):
            left.unlink()
        for left in pathlib.Path("/var/lib/cni/results").glob(f"{self.cgroup}-*"):
            left.unlink(missing_ok=True)
        for left in pathlib.Path("/var/log/containers").glob("*.log"):
            if str(self.folder) in str(left.readlink()):
                left.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _cni(self) -> dict[str, object]:
        """Point-to-point links and routes: no bridge, whose local traffic would pass by the Services' rules."""
        pods = {
            "type": "ptp",
            "ipMasq": False,
            "ipam": {
                "type": "host-local",
                "dataDir": str(self.folder / "addresses"),
                "ranges": [[{"subnet": self.place.pods}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
        return {"cniVersion": "0.4.0", "name": self.cgroup, "plugins": [pods]}

    def _kubelet(self, dns: str) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.run_dir / "pki" / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "clusterDNS": [dns],
            "clusterDomain": "cluster.local",
            "resolvConf": str(self.folder / "resolv.conf"),
            "podLogsDir": str(self.folder / "pod-logs"),
            "volumePluginDir": str(self.folder / "volume-plugins"),
            # A disk may report far more than it has: images are never garbage here, and eviction starts at the end.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "200Mi", "nodefs.available": "1Gi", "imagefs.available": "1Gi"},
            "evictionPressureTransitionPeriod": "5s",
            "nodeLeaseDurationSeconds": 20,
            "nodeStatusUpdateFrequency": "5s",
            "syncFrequency": "10s",
            "registerNode": True,
            "maxPods": 60,
        }

    def _start(self, program: str, *arguments: str) -> None:
        command = [*self.place.enter, str(binaries.find(program)), *arguments]
        processes.start(self.run_dir, f"{self.name}-{program}", command)

    def _ctr(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [str(binaries.find("ctr")), "--address", str(self.socket), "--namespace", "k8s.io", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=CTR_S)

    def _checked(self, *arguments: str) -> None:
        done = self._ctr(*arguments)
        if done.returncode:
            raise OSError(f"ctr {' '.join(arguments)} on {self.name}: {done.stderr.strip()[-2000:]}")


def _running_with(argument: str) -> Sequence[int]:
    """Return the pids of processes with exactly this argument: a shim names the socket of its containerd."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if argument.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def _unmount_below(folder: pathlib.Path) -> None:
    lines = pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
    mounts = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    for mount in sorted((one for one in mounts if one.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "--lazy", mount], capture_output=True, timeout=30)
