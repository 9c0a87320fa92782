"""Network namespaces in a star: each has one link to the hub, as fast in each direction as it is told, and no more.

Shaped by the kernel's token buckets (tc tbf) on both ends of each link. Needs root; addresses exist inside only.
"""

import dataclasses
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# What a token bucket lets through at once: a few milliseconds of a link of 200 Mbit/s.
_BURST, _QUEUE = "256k", "50ms"


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A namespace of the star, by number from 1."""

    star: str
    number: int

    @property
    def namespace(self) -> str:
        return f"{self.star}-{self.number}"

    @property
    def address(self) -> str:
        return f"10.89.{self.number}.2"

    @property
    def enter(self) -> tuple[str, ...]:
        """Return the prefix of a command that is to run there."""
        return ("nsenter", f"--net=/run/netns/{self.namespace}")

    def sent_bytes(self) -> int:
        """Return the bytes that left this place, with all headers, since it was made."""
        (shown,) = json.loads(_run(["ip", "-n", self.namespace, "-s", "-j", "link", "show", "dev", "up0"]))
        return int(shown["stats64"]["tx"]["bytes"])


@contextmanager
def star(count: int, *, mbit_per_s: int) -> Iterator[Sequence[Place]]:
    """Make a star of `count` places and take it away again. Raises OSError where that is not allowed."""
    name = f"rljob-star-{os.getpid()}"
    hub = f"{name}-hub"
    places = [Place(name, number) for number in range(1, count + 1)]
    shape = ("root", "tbf", "rate", f"{mbit_per_s}mbit", "burst", _BURST, "latency", _QUEUE)
    try:
        _run(["ip", "netns", "add", hub])
        forward = "echo 1 > /proc/sys/net/ipv4/ip_forward"
        _run(["nsenter", f"--net=/run/netns/{hub}", "sh", "-c", forward])
        for place in places:
            end = f"to{place.number}"
            _run(["ip", "netns", "add", place.namespace])
            _run(["ip", "-n", hub, "link", "add", end, "type", "veth", "peer", "name", "up0", "netns", place.namespace])
            _run(["ip", "-n", hub, "address", "add", f"10.89.{place.number}.1/24", "dev", end])
            _run(["ip", "-n", place.namespace, "address", "add", f"{place.address}/24", "dev", "up0"])
            for where, link in ((hub, end), (place.namespace, "up0"), (place.namespace, "lo")):
                _run(["ip", "-n", where, "link", "set", "dev", link, "up"])
            _run(["ip", "-n", place.namespace, "route", "add", "default", "via", f"10.89.{place.number}.1"])
            _run(["tc", "-n", hub, "qdisc", "add", "dev", end, *shape])
            _run(["tc", "-n", place.namespace, "qdisc", "add", "dev", "up0", *shape])
        yield places
    finally:
        for namespace in (hub, *(place.namespace for place in places)):
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, timeout=30, check=False)


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
