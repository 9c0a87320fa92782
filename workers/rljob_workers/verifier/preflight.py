"""`python -m rljob_workers.verifier.preflight --require landlock,seccomp`: the first container of a verifier pod.

It has the pod's own security context, so what it sees is what grading will have; nodes differ, so every pod looks for
itself. The report is JSON in the termination message, where the operator finds it. A required layer that does not hold
ends the container with exit code 79, and the pod never becomes ready.
"""

import argparse
import ctypes
import dataclasses
import json
import os
import pathlib
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from rljob_api import enums, errors
from rljob_workers.verifier.sandbox import probe
from rljob_workers.verifier.sandbox.confinement import landlock as landlock_rules

_PROC = pathlib.Path("/proc")
_TOKEN = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_RESOLVER = pathlib.Path("/etc/resolv.conf")
_METADATA = ("169.254.169.254", 80)
_HOST_MAP = "0 0 4294967295"
_CONNECT_S = 1.0
_GVISOR, _GVISOR_LOG = "gVisor", "Starting gVisor"
_PR_GET_NO_NEW_PRIVS = 39
# syslog(2): SYSLOG_ACTION_READ_ALL; what gVisor says of itself is its first line.
_READ_ALL, _LOG_BYTES = 3, 4096


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    """One layer: whether it holds, and what was seen."""

    name: str
    holds: bool
    detail: str


def landlock() -> Layer:
    """Whether the kernel takes Landlock rules; the detail is the version of its interface."""
    try:
        return Layer("landlock", True, f"ABI {landlock_rules.version()}")
    except OSError as error:
        return Layer("landlock", False, str(error.strerror))


def confined(*, runtime_class: str = "") -> Layer:
    """Whether programs can be confined: each attempt of the test must fail, and each excess must be stopped.

    runtime_class: the one that the job asks for, under which the kernel may lack Landlock and user notification; the
    detail says which of them it has.
    """
    try:
        layers = probe.verified(runtime_class=runtime_class)
        unlimited = probe.unlimited(layers)
    except errors.SandboxError as error:
        return Layer("confined", False, str(error))
    if unlimited:
        return Layer("confined", False, f"not limited: {', '.join(unlimited)}")
    rules = f"Landlock ABI {layers.abi}" if layers.abi else "no Landlock"
    asks = "" if layers.asks else " that cannot ask"
    return Layer("confined", True, f"{rules}, filter for {layers.architecture.name}{asks}")


def process_layers(
    proc: pathlib.Path = _PROC, *, no_new_privs: Callable[[], int] | None = None, log: Callable[[], str] | None = None
) -> list[Layer]:
    """Return what the kernel says of this process: filter, privileges, capabilities, user namespace, runtime.

    no_new_privs: asks the kernel where its list of a process does not say it, as gVisor's does not. log: the kernel's.
    """
    status = _fields(proc / "self" / "status")
    seccomp = status.get("Seccomp", "?")
    no_new = status.get("NoNewPrivs") or str((no_new_privs or asked_no_new_privs)())
    capabilities = status.get("CapEff", "?")
    uid_map = " ".join(_text(proc / "self" / "uid_map").split())
    version = _text(proc / "version")
    return [
        Layer("seccomp", seccomp == "2", f"mode {seccomp}"),
        Layer("no_new_privileges", no_new == "1", no_new),
        Layer("capabilities", capabilities != "?" and not capabilities.strip("0"), capabilities),
        Layer("user_namespace", bool(uid_map) and uid_map != _HOST_MAP, uid_map),
        _runtime(version, (log or kernel_log)()),
    ]


def _runtime(version: str, log: str) -> Layer:
    if _GVISOR.lower() in version.lower() or _GVISOR_LOG in log:
        return Layer("runtime_class", True, _GVISOR)
    return Layer("runtime_class", False, " ".join(version.split()[:3]))


def asked_no_new_privs() -> int:
    """Return 1 where this process can gain no privileges, else 0; -1 if the kernel does not answer."""
    return int(ctypes.CDLL(None).prctl(_PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0))


def kernel_log() -> str:
    """Return the begin of the kernel's log; empty where it may not be read, as an ordinary pod may not read Linux's."""
    buffer = ctypes.create_string_buffer(_LOG_BYTES)
    size = ctypes.CDLL(None).klogctl(_READ_ALL, buffer, _LOG_BYTES)
    return buffer.raw[: max(size, 0)].decode("utf-8", errors="replace")


def read_only_root() -> Layer:
    """Whether nothing can be written to the image."""
    flags = os.statvfs("/").f_flag
    return Layer("read_only_root", bool(flags & os.ST_RDONLY), "ro" if flags & os.ST_RDONLY else "rw")


def no_token(path: pathlib.Path = _TOKEN) -> Layer:
    """Whether there is no ServiceAccount token."""
    return Layer("no_token", not path.exists(), str(path) if path.exists() else "none")


def network(
    environment: Mapping[str, str], *, outside: str, connect: Callable[[tuple[str, int]], bool] | None = None,
    resolvers: Sequence[str] | None = None, ask: Callable[[str], bool] | None = None,
) -> Layer:  # fmt: skip
    """Whether API server, metadata address, DNS and an outside address (host:port, empty for none) are out of reach."""
    reached = [name for name, address in _targets(environment, outside) if (connect or connects)(address)]
    servers = nameservers(_RESOLVER) if resolvers is None else resolvers
    if any((ask or answers_dns)(server) for server in servers):
        reached.append("dns")
    return Layer("network", not reached, f"reached {', '.join(reached)}" if reached else "nothing reached")


def _targets(environment: Mapping[str, str], outside: str) -> list[tuple[str, tuple[str, int]]]:
    targets = [("metadata", _METADATA)]
    if environment.get("KUBERNETES_SERVICE_HOST"):
        port = int(environment.get("KUBERNETES_SERVICE_PORT", "443"))
        targets.append(("api_server", (environment["KUBERNETES_SERVICE_HOST"], port)))
    if outside:
        host, _, number = outside.rpartition(":")
        targets.append(("outside", (host, int(number))))
    return targets


def connects(address: tuple[str, int]) -> bool:
    """Return whether a TCP connection opens; nothing is sent."""
    try:
        socket.create_connection(address, timeout=_CONNECT_S).close()
    except ConnectionRefusedError:
        # Something answered: packets get there.
        return True
    except OSError:
        return False
    return True


def answers_dns(server: str, port: int = 53) -> bool:
    """Return whether a name server answers a question for the root."""
    question = struct.pack(">HHHHHH", 0x524C, 0x0100, 1, 0, 0, 0) + b"\x00" + struct.pack(">HH", 2, 1)
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.settimeout(_CONNECT_S)
        try:
            sock.sendto(question, (server, port))
            return bool(sock.recv(512))
        except OSError:
            return False


def nameservers(path: pathlib.Path) -> list[str]:
    """Return the name servers of a resolver's configuration."""
    lines = (line.split() for line in _text(path).splitlines())
    return [words[1] for words in lines if len(words) > 1 and words[0] == "nameserver"]


def _fields(path: pathlib.Path) -> dict[str, str]:
    pairs = (line.partition(":") for line in _text(path).splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# Network policies reach a node some time after the pod.
NETWORK_RETRY_S = 15.0
_POLL_S = 1.0
Probed = Callable[[argparse.Namespace], list[Layer]]
_MESSAGE = pathlib.Path("/dev/termination-log")


def main(argv: Sequence[str] | None = None, *, probed: Probed | None = None) -> int:
    """Return 0, or 79 if a required layer does not hold."""
    parser = argparse.ArgumentParser(prog="rljob-preflight", description="Tests a verifier pod's isolation.")
    parser.add_argument("--require", default="", help="layers that must hold, separated by commas")
    parser.add_argument(
        "--runtime-class", default="", help="the pod's, if isolation asks for one: its kernel may lack Landlock"
    )
    parser.add_argument("--closed-network", action="store_true", help="wait for network policies to close the network")
    parser.add_argument("--outside", default="", help="host:port outside the cluster that must be out of reach")
    arguments = parser.parse_args(argv)
    required = tuple(filter(None, arguments.require.split(",")))
    layers = (probed or _probed)(arguments)
    text = report(layers, required)
    sys.stdout.write(f"{text}\n")
    if _MESSAGE.is_file() and os.access(_MESSAGE, os.W_OK):
        _MESSAGE.write_text(text, encoding="utf-8")
    return int(enums.ExitCode.ISOLATION_REFUSED) if missing(layers, required) else int(enums.ExitCode.OK)


def _probed(arguments: argparse.Namespace) -> list[Layer]:
    closed = settled(
        lambda: network(os.environ, outside=arguments.outside),
        wait_s=NETWORK_RETRY_S if arguments.closed_network else 0.0,
        monotonic=time.monotonic,
        sleep=time.sleep,
    )
    return [
        landlock(),
        *process_layers(),
        confined(runtime_class=arguments.runtime_class),
        read_only_root(),
        no_token(),
        closed,
    ]


def settled(
    probe: Callable[[], Layer], *, wait_s: float, monotonic: Callable[[], float], sleep: Callable[[float], None]
) -> Layer:
    """Return what a probe says once its layer holds, or after `wait_s`."""
    deadline = monotonic() + wait_s
    while True:
        layer = probe()
        if layer.holds or monotonic() >= deadline:
            return layer
        sleep(_POLL_S)


def missing(layers: Sequence[Layer], required: Sequence[str]) -> list[str]:
    """Return the required layers that do not hold; one that no probe knows counts as missing."""
    holding = {layer.name for layer in layers if layer.holds}
    return [name for name in required if name not in holding]


def report(layers: Sequence[Layer], required: Sequence[str]) -> str:
    layers_that_hold = {
        layer.name: {"holds": layer.holds, "detail": layer.detail[:120], "required": layer.name in required}
        for layer in layers
    }
    return json.dumps({"layers": layers_that_hold, "missing": missing(layers, required)})


if __name__ == "__main__":
    sys.exit(main())
