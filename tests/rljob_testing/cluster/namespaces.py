"""Network namespaces of the cluster: one per node, joined by a veth pair, with no way to the machine's own network."""

import dataclasses
import ipaddress
import pathlib
import subprocess
from collections.abc import Sequence

# Addresses exist inside the namespaces only, so they cannot clash with the machine's.
LINK = ipaddress.ip_network("10.88.0.0/24")
PODS = ipaddress.ip_network("10.88.0.0/16")
LINK_NAME = "node"


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A node's network: its letter, namespace, own address and the subnet of its pods."""

    letter: str

    @property
    def namespace(self) -> str:
        """Return the name of the network namespace."""
        return f"rljob-{self.letter}"

    @property
    def address(self) -> str:
        """Return the node's address."""
        return str(LINK[1 + _number(self.letter)])

    @property
    def pods(self) -> str:
        """Return the subnet of the node's pods."""
        return f"10.88.{1 + _number(self.letter)}.0/24"

    @property
    def enter(self) -> tuple[str, ...]:
        """Return the prefix of a command that is to run there; the mounts stay, so the cgroups stay visible."""
        return ("nsenter", f"--net=/run/netns/{self.namespace}")


def _number(letter: str) -> int:
    return ord(letter) - ord("a")


def create(first: Place, second: Place) -> None:
    """Make both namespaces and the link between them. Raises FileExistsError if one is there."""
    for place in (first, second):
        if pathlib.Path("/run/netns", place.namespace).exists():
            raise FileExistsError(f"network namespace {place.namespace} exists: stop the cluster that runs in it")
    for place in (first, second):
        _ip("netns", "add", place.namespace)
        _ip("-n", place.namespace, "link", "set", "lo", "up")
        sysctls = ("net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.default.rp_filter=0")
        for setting in sysctls:
            key, value = setting.split("=")
            path = f"/proc/sys/{key.replace('.', '/')}"
            _run([*place.enter, "sh", "-c", f"echo {value} > {path}"])
    pair = ("link", "add", LINK_NAME, "type", "veth", "peer", "name", LINK_NAME, "netns", second.namespace)
    _ip("-n", first.namespace, *pair)
    for place in (first, second):
        _ip("-n", place.namespace, "address", "add", f"{place.address}/{LINK.prefixlen}", "dev", LINK_NAME)
    # A route needs the link to be up on both ends.
    for place in (first, second):
        _ip("-n", place.namespace, "link", "set", LINK_NAME, "up")
    for place, other in ((first, second), (second, first)):
        join(place, other)


def cut(place: Place) -> None:
    """Cut a node from the other one: the kernel drops the routes with the link, and pods keep running."""
    _ip("-n", place.namespace, "link", "set", LINK_NAME, "down")


def join(place: Place, other: Place) -> None:
    """Open a node's end of the link, with the way to the other's pods."""
    _ip("-n", place.namespace, "link", "set", LINK_NAME, "up")
    _ip("-n", place.namespace, "route", "replace", other.pods, "via", other.address)


def delete(places: Sequence[Place]) -> None:
    """Remove the namespaces that are there."""
    for place in places:
        if pathlib.Path("/run/netns", place.namespace).exists():
            _ip("netns", "delete", place.namespace)


def _ip(*arguments: str) -> None:
    _run(["ip", *arguments])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
