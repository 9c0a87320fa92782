"""One node: containerd, kubelet and kube-proxy in a network namespace of its own, with a cgroup of its own.

Images come from a template that all nodes share; a node's own root lies in the cache folder, because files are linked
within one file system only. Everything else lies in the run folder; all of it goes with the node.
"""

import contextlib
import json
import pathlib
import shutil

from rljob_testing.cluster import binaries, cgroups, namespaces, processes, roots
from rljob_testing.cluster.runtime import Runtime

# Logs and addresses that programs of Kubernetes keep at places of their own choice.
_ADDRESSES, _LOGS = pathlib.Path("/var/lib/cni/results"), pathlib.Path("/var/log/containers")


class Node:
    """A node by its letter; `pki` holds `node-<letter>.crt` and the CA."""

    def __init__(self, place: namespaces.Place, run_dir: pathlib.Path) -> None:
        self.place = place
        self.name = f"node-{place.letter}"
        self.run_dir = run_dir
        self.cgroup = f"rljob-{self.name}"
        root = binaries.cache_dir() / "nodes" / place.letter
        self.runtime = Runtime(self.name, run_dir, root, place.enter)
        self.folder = self.runtime.folder

    def start_runtime(self, template: pathlib.Path | None = None) -> None:
        """Start containerd with the images of a template, or none, and wait until it answers. Raises NotReadyError."""
        if template is None:
            roots.discard(self.runtime.root)
        else:
            roots.clone(template, self.runtime.root)
        cgroups.create(self.cgroup)
        self.runtime.cni.mkdir(parents=True, exist_ok=True)
        (self.runtime.cni / "10-pods.conflist").write_text(json.dumps(self._cni()))
        self.runtime.start()

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

    def down(self) -> None:
        """End pods, containers and processes of this node and remove what it wrote."""
        for name in ("kube-proxy", "kubelet"):
            processes.stop(self.run_dir, f"{self.name}-{name}")
        cgroups.kill(self.cgroup)
        self.runtime.stop()
        cgroups.delete(self.cgroup)
        for left in _ADDRESSES.glob(f"{self.cgroup}-*"):
            left.unlink(missing_ok=True)
        for left in _LOGS.glob("*.log"):
            # The folder is the machine's: another cluster's kubelet may have removed a link of its own meanwhile.
            with contextlib.suppress(FileNotFoundError):
                if str(self.folder) in str(left.readlink()):
                    left.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)
        roots.discard(self.runtime.root)

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
            "containerRuntimeEndpoint": f"unix://{self.runtime.socket}",
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
