"""The light flavour: etcd, API server and controller manager on loopback ports of their own; no node."""

import json
import pathlib
import shutil
import socket
import subprocess

from rljob_testing.cluster import binaries, processes
from rljob_testing.cluster.certs import Authority

LOOPBACK = "127.0.0.1"
READY_S = 120.0
KUBECTL_S = 60.0
SERVICE_CIDR = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"


class LightCluster:
    """A control plane in a run folder; `kubeconfig` is an administrator's."""

    def __init__(self, run_dir: pathlib.Path) -> None:
        self.run_dir = run_dir.resolve()
        self.kubeconfig = self.run_dir / "admin.kubeconfig"

    def up(self) -> None:
        """Start it. Raises MissingProgramError, NotReadyError, or FileExistsError where the folder is in use."""
        if any((self.run_dir / "pids").glob("*")):
            raise FileExistsError(f"{self.run_dir} holds a cluster: run `down` on it first")
        self.run_dir.mkdir(parents=True, exist_ok=True)
        etcd, peer, server, manager = _free_ports(4)
        authority = Authority(self.run_dir / "pki")
        authority.server("apiserver", ("localhost", "kubernetes.default.svc"), (LOOPBACK, SERVICE_ADDRESS))
        authority.client("admin", "rljob-test-admin", ("system:masters",))
        authority.client("controller-manager", "system:kube-controller-manager")
        authority.client("service-account", "service-account")
        for user in ("admin", "controller-manager"):
            self._write_kubeconfig(user, server)
        self._start_etcd(etcd, peer)
        self._start_server(etcd, server)
        processes.wait_until(self.run_dir, "kube-apiserver", self._ready, READY_S)
        self._start_manager(manager)

    def down(self) -> None:
        """Stop what was started here and remove its state; logs stay."""
        processes.stop_all(self.run_dir)
        for folder in ("etcd", "pki"):
            shutil.rmtree(self.run_dir / folder, ignore_errors=True)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> "subprocess.CompletedProcess[str]":
        """Run kubectl as administrator; the caller looks at the return code."""
        command = [str(binaries.find("kubectl")), "--kubeconfig", str(self.kubeconfig), *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=KUBECTL_S)

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
        }
        self._start("etcd", flags)

    def _start_server(self, etcd: int, port: int) -> None:
        pki = self.run_dir / "pki"
        flags = {
            "etcd-servers": f"http://{LOOPBACK}:{etcd}",
            "bind-address": LOOPBACK,
            "advertise-address": LOOPBACK,
            "secure-port": str(port),
            # A loopback address may not become an endpoint of the kubernetes Service.
            "endpoint-reconciler-type": "none",
            "client-ca-file": str(pki / "ca.crt"),
            "tls-cert-file": str(pki / "apiserver.crt"),
            "tls-private-key-file": str(pki / "apiserver.key"),
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": str(pki / "service-account.key"),
            "service-account-signing-key-file": str(pki / "service-account.key"),
            "service-cluster-ip-range": SERVICE_CIDR,
            "authorization-mode": "Node,RBAC",
        }
        self._start("kube-apiserver", flags)

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
        command = [str(binaries.find(name)), *(f"--{key}={value}" for key, value in flags.items())]
        processes.start(self.run_dir, name, command)

    def _write_kubeconfig(self, user: str, port: int) -> None:
        pki = self.run_dir / "pki"
        cluster = {"server": f"https://{LOOPBACK}:{port}", "certificate-authority": str(pki / "ca.crt")}
        keys = {"client-certificate": str(pki / f"{user}.crt"), "client-key": str(pki / f"{user}.key")}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": user, "user": keys}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "current-context": "test",
        }
        (self.run_dir / f"{user}.kubeconfig").write_text(json.dumps(content))


def _free_ports(count: int) -> list[int]:
    """Return ports that are free now; all are held until the last is known, so no two are equal."""
    sockets = [socket.create_server((LOOPBACK, 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports
