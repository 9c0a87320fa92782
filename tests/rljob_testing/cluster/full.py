"""The full flavour: a control plane, DNS and two nodes in network namespaces, reached by a loopback port.

    machine's loopback :port --relay--> [ namespace rljob-a: etcd, API server, controllers, scheduler, DNS, node-a ]
                                                     |  veth
                                        [ namespace rljob-b: node-b ]

Nothing in there reaches the machine's network. The bridge-less pod network enforces no NetworkPolicy: policies are
accepted and have no effect, and tests that need enforcement must say so.
"""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
from collections.abc import Iterator

from rljob_testing.cluster import binaries, namespaces, processes
from rljob_testing.cluster.light import LOOPBACK, LightCluster, Network
from rljob_testing.cluster.node import Node
from rljob_testing.cluster.runtime import SOCKETS

NODES_READY_S = 120.0
HELM_S = 300.0
A, B = namespaces.Place("a"), namespaces.Place("b")

_SERVER = "rljob-test-apiserver"
_DNS_ROLE = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: rljob-test-dns}
rules:
- {apiGroups: [""], resources: [services, pods, namespaces, endpoints], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: rljob-test-dns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: rljob-test-dns}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: rljob-test-dns}]
"""
# Two servers, because a template goes before the names of the cluster in a server of its own, whatever their order.
_COREFILE = """\
cluster.local:53 in-addr.arpa:53 {{
  bind {address}
  errors
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {kubeconfig}
    ttl 1
  }}
}}
.:53 {{
  bind {address}
  errors
  template ANY ANY {{
    rcode NXDOMAIN
  }}
}}
"""


class FullCluster:
    """Two nodes and a control plane in a run folder, the latter in the first place; a place holds one at a time."""

    def __init__(
        self,
        run_dir: pathlib.Path,
        places: tuple[namespaces.Place, namespaces.Place] = (A, B),
        *,
        template: pathlib.Path | None = None,
    ) -> None:
        """`template` is a containerd root whose images both nodes begin with; None is for nodes without images."""
        self.run_dir = run_dir.resolve()
        self.template = template
        self.places = places
        self.home = places[0]
        self.nodes = (Node(places[0], self.run_dir), Node(places[1], self.run_dir))
        self.plane = LightCluster(self.run_dir, self._network())
        self.kubeconfig = self.plane.kubeconfig
        self.kubectl = self.plane.kubectl

    def up(self) -> None:
        """Start it; both nodes are Ready afterwards. Raises MissingProgramError, NotReadyError, FileExistsError."""
        authority = self.plane.prepare()
        self._take_places()
        authority.client("scheduler", "system:kube-scheduler")
        authority.client("proxy", "system:kube-proxy")
        authority.client("dns", "rljob-test-dns")
        authority.client("kubelet-client", _SERVER, ("system:masters",))
        for user in ("scheduler", "proxy", "dns"):
            self.plane.write_kubeconfig(user, self.home.address)
        for node in self.nodes:
            authority.client(node.name, f"system:node:{node.name}", ("system:nodes",))
            self.plane.write_kubeconfig(node.name, self.home.address)
            node.start_runtime(self.template)
        self._start_relay()
        self.plane.launch()
        self._start_scheduler()
        self._start_dns()
        # One after the other: a kubelet clears /var/lib/kubelet/device-plugins, which has no option, and listens there.
        for node in self.nodes:
            node.start_kubelet(self.home.address)
            node.start_proxy()
            self._wait_for(node)

    def down(self) -> None:
        """Stop what was started here and remove its state; logs stay."""
        if self._holder() != self.run_dir:
            return
        # Without its controllers nothing new is started while nodes go.
        for name in ("kube-controller-manager", "kube-scheduler"):
            processes.stop(self.run_dir, name)
        for node in self.nodes:
            node.down()
        self.plane.down()
        namespaces.delete(self.places)
        self._claim.unlink()

    @contextlib.contextmanager
    def cut_off(self, node: Node) -> Iterator[None]:
        """Let nothing be heard of a node but the first; its Node object stays, and its containers run on."""
        namespaces.cut(node.place)
        node.stop_kubelet()
        try:
            yield
        finally:
            namespaces.join(node.place, self.home)
            node.start_kubelet(self.home.address)

    @property
    def _claim(self) -> pathlib.Path:
        """Return the file with the run folder of the cluster that holds these places."""
        return SOCKETS / f"{self.home.namespace}.holder"

    def _holder(self) -> pathlib.Path | None:
        return pathlib.Path(self._claim.read_text()) if self._claim.exists() else None

    def _take_places(self) -> None:
        """Make the namespaces and say so. Raises FileExistsError if another cluster runs in them."""
        holder = self._holder()
        if holder is not None and not processes.any_alive(holder):
            # It was killed before it could clear its places, as a pipeline's time limit does.
            FullCluster(holder, self.places).down()
        namespaces.create(*self.places)
        SOCKETS.mkdir(parents=True, exist_ok=True)
        self._claim.write_text(str(self.run_dir))

    def helm(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run Helm as administrator, with caches of its own; the caller looks at the return code."""
        own = {name: str(self.run_dir / "helm") for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")}
        command = [str(binaries.find("helm")), "--kubeconfig", str(self.kubeconfig), *arguments]
        return subprocess.run(command, env=os.environ | own, capture_output=True, text=True, timeout=HELM_S)

    def _network(self) -> Network:
        pki = self.run_dir / "pki"
        server = {
            "kubelet-client-certificate": str(pki / "kubelet-client.crt"),
            "kubelet-client-key": str(pki / "kubelet-client.key"),
            # The nodes' names are in no DNS.
            "kubelet-preferred-address-types": "InternalIP",
            # A lost node's pods are replaced within a minute instead of six.
            "default-not-ready-toleration-seconds": "15",
            "default-unreachable-toleration-seconds": "15",
            "requestheader-client-ca-file": str(pki / "ca.crt"),
            # The same CA signs users and this proxy, so the proxy is known by its name.
            "requestheader-allowed-names": _SERVER,
            "requestheader-username-headers": "X-Remote-User",
            "requestheader-group-headers": "X-Remote-Group",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
            "proxy-client-cert-file": str(pki / "kubelet-client.crt"),
            "proxy-client-key-file": str(pki / "kubelet-client.key"),
        }
        manager = {
            "node-monitor-grace-period": "30s",
            "node-monitor-period": "2s",
            "horizontal-pod-autoscaler-sync-period": "5s",
        }
        flags = {"kube-apiserver": server, "kube-controller-manager": manager}
        return Network(enter=self.home.enter, address=self.home.address, flags=flags)

    def _start_relay(self) -> None:
        self.relay("relay", self.plane.port, at=self.plane.port)

    def relay(self, name: str, port: int, *, at: int = 0) -> int:
        """Let a loopback port lead to a port of the first node, until the cluster goes; return it. at: 0 is any."""
        listener = socket.create_server((LOOPBACK, at))
        script, descriptor = str(pathlib.Path(__file__).with_name("relay.py")), listener.fileno()
        to = (str(descriptor), self.home.address, str(port))
        processes.start(
            self.run_dir, name, [*self.home.enter, sys.executable, "-I", script, *to], pass_fds=(descriptor,)
        )
        found = int(listener.getsockname()[1])
        listener.close()
        return found

    def _start_scheduler(self) -> None:
        flags = {"kubeconfig": str(self.run_dir / "scheduler.kubeconfig"), "leader-elect": "false"}
        command = [
            *self.home.enter,
            str(binaries.find("kube-scheduler")),
            *(f"--{key}={value}" for key, value in flags.items()),
        ]
        processes.start(self.run_dir, "kube-scheduler", command)

    def _start_dns(self) -> None:
        done = self.kubectl("apply", "-f", "-", stdin=_DNS_ROLE)
        if done.returncode:
            raise processes.NotReadyError(f"rights of the DNS server: {done.stderr}")
        corefile = self.run_dir / "Corefile"
        corefile.write_text(_COREFILE.format(address=self.home.address, kubeconfig=self.run_dir / "dns.kubeconfig"))
        processes.start(
            self.run_dir, "coredns", [*self.home.enter, str(binaries.find("coredns")), "-conf", str(corefile)]
        )

    def _wait_for(self, node: Node) -> None:
        def ready() -> bool:
            # An error means that the node has not registered yet.
            waited = self.kubectl("wait", "--for=condition=Ready", "--timeout=5s", f"node/{node.name}")
            return waited.returncode == 0

        processes.wait_until(self.run_dir, f"{node.name}-kubelet", ready, NODES_READY_S)
