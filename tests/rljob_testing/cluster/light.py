"""The light flavour: etcd, API server and controller manager on loopback ports of their own; no node.

The full flavour is the same control plane inside a network namespace, where nodes reach it by an address.
"""

import dataclasses
import json
import pathlib
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from rljob_testing.cluster import binaries, processes
from rljob_testing.cluster.certs import Authority
from rljob_testing.ports import free_ports

LOOPBACK = "127.0.0.1"
READY_S = 120.0
KUBECTL_S = 60.0
SERVICE_CIDR = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"
_SERVER = "kube-apiserver"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Where a control plane runs: the prefix of a command that enters its network, and the address that nodes use.

    `flags` are added to those of a process, by its name.
    """

    enter: Sequence[str] = ()
    address: str = LOOPBACK
    flags: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)


class LightCluster:
    """A control plane in a run folder; `kubeconfig` is an administrator's. `port` is the API server's once it is up."""

    def __init__(self, run_dir: pathlib.Path, network: Network | None = None) -> None:
        self.run_dir = run_dir.resolve()
        self.kubeconfig = self.run_dir / "admin.kubeconfig"
        self.network = network or Network()
        self.port = 0

    def up(self) -> None:
        """Start it. Raises MissingProgramError, NotReadyError, or FileExistsError where the folder is in use."""
        self.prepare()
        self.launch()

    def prepare(self) -> Authority:
        """Choose ports, write certificates and kubeconfigs. Raises FileExistsError."""
        if any((self.run_dir / "pids").glob("*")):
            raise FileExistsError(f"{self.run_dir} holds a cluster: run `down` on it first")
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self._etcd, self._peer, self.port, self._manager = free_ports(4)
        authority = Authority(self.run_dir / "pki")
        names = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
        authority.server("apiserver", names, tuple({LOOPBACK, self.network.address, SERVICE_ADDRESS}))
        authority.client("admin", "rljob-test-admin", ("system:masters",))
        authority.client("controller-manager", "system:kube-controller-manager")
        authority.client("service-account", "service-account")
        self.write_kubeconfig("admin", LOOPBACK)
        self.write_kubeconfig("controller-manager", LOOPBACK)
        return authority

    def launch(self) -> None:
        """Start the processes. Raises MissingProgramError, NotReadyError."""
        self._start_etcd(self._etcd, self._peer)
        # The controller manager ends when it finds no server within a few seconds.
        self.start_server()
        self._start_manager(self._manager)

    def start_server(self) -> None:
        """Start the API server, the first time or again after a stop, and wait for it. Raises NotReadyError."""
        self._start_server(self._etcd, self.port)
        processes.wait_until(self.run_dir, _SERVER, self._ready, READY_S)

    def stop_server(self) -> None:
        """Stop the API server; all else runs on and cannot ask it."""
        processes.stop(self.run_dir, _SERVER)

    def down(self) -> None:
        """Stop what was started here and remove its state; logs stay."""
        processes.stop_all(self.run_dir)
        for folder in ("etcd", "pki"):
            shutil.rmtree(self.run_dir / folder, ignore_errors=True)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> "subprocess.CompletedProcess[str]":
        """Run kubectl as administrator; the caller looks at the return code."""
        command = self.kubectl_command(*arguments)
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=KUBECTL_S)

    def kubectl_command(self, *arguments: str) -> list[str]:
        """Return the command for kubectl as administrator."""
        return [str(binaries.find("kubectl")), "--kubeconfig", str(self.kubeconfig), *arguments]

    def _ready(self) -> bool:
        return self.kubectl("get", "--raw", "/readyz").returncode == 0

    def _start_etcd(self, port: int, peer: int) -> None:
        client, own = f"http://{LOOPBACK}:{port}", f"http://{LOOPBACK}:{peer}"
        flags = {
            "name": "one",
            "data-dir": str(self.run_dir / "etcd"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": own,
            "initial-advertise-peer-urls": own,
            "initial-cluster": f"one={own}",
            # A cluster of a test does not outlive its machine.
            "unsafe-no-fsync": "true",
        }
        self._start("etcd", flags)

    def _start_server(self, etcd: int, port: int) -> None:
        pki = self.run_dir / "pki"
        flags = {
            "etcd-servers": f"http://{LOOPBACK}:{etcd}",
            "bind-address": LOOPBACK if self.network.address == LOOPBACK else "0.0.0.0",
            "advertise-address": self.network.address,
            "secure-port": str(port),
            # A loopback address may not become an endpoint of the kubernetes Service.
            "endpoint-reconciler-type": "none" if self.network.address == LOOPBACK else "lease",
            "client-ca-file": str(pki / "ca.crt"),
            "tls-cert-file": str(pki / "apiserver.crt"),
            "tls-private-key-file": str(pki / "apiserver.key"),
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": str(pki / "service-account.key"),
            "service-account-signing-key-file": str(pki / "service-account.key"),
            "service-cluster-ip-range": SERVICE_CIDR,
            "authorization-mode": "Node,RBAC",
            # As every common cluster has it: policies of admission decide about privileged pods, not the server.
            "allow-privileged": "true",
        }
        self._start(_SERVER, flags)

    def _start_manager(self, port: int) -> None:
        pki = self.run_dir / "pki"
        flags = {
            "kubeconfig": str(self.run_dir / "controller-manager.kubeconfig"),
            "bind-address": LOOPBACK,
            "secure-port": str(port),
            "cert-dir": str(pki),
            "root-ca-file": str(pki / "ca.crt"),
            "service-account-private-key-file": str(pki / "service-account.key"),
            "use-service-account-credentials": "true",
            "leader-elect": "false",
        }
        self._start("kube-controller-manager", flags)

    def _start(self, name: str, flags: dict[str, str]) -> None:
        merged = {**flags, **self.network.flags.get(name, {})}
        command = [
            *self.network.enter,
            str(binaries.find(name)),
            *(f"--{key}={value}" for key, value in merged.items()),
        ]
        processes.start(self.run_dir, name, command)

    def write_kubeconfig(self, user: str, address: str) -> pathlib.Path:
        """Write `<user>.kubeconfig` for a client certificate of that name, and return its path."""
        pki = self.run_dir / "pki"
        cluster = {"server": f"https://{address}:{self.port}", "certificate-authority": str(pki / "ca.crt")}
        keys = {"client-certificate": str(pki / f"{user}.crt"), "client-key": str(pki / f"{user}.key")}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": user, "user": keys}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "current-context": "test",
        }
        path = self.run_dir / f"{user}.kubeconfig"
        path.write_text(json.dumps(content))
        return path
