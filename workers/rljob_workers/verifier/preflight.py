"""`python -m rljob_workers.verifier.preflight --require landlock,seccomp`: the first container of a verifier pod.

It has the pod's own security context, so what it sees is what grading will have; nodes differ, so every pod looks for
itself. The report is JSON in the termination message, where the operator finds it. A required layer that does not hold
ends the container with exit code 79, and the pod never becomes ready.
"""

import argparse
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Sequence

from rljob_api import names
from rljob_workers.verifier import layers
from rljob_workers.verifier.layers import Layer

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
    given = parser.parse_args(argv)
    required = tuple(filter(None, given.require.split(",")))
    found = (probed or _probed)(given)
    text = report(found, required)
    sys.stdout.write(f"{text}\n")
    if _MESSAGE.is_file() and os.access(_MESSAGE, os.W_OK):
        _MESSAGE.write_text(text, encoding="utf-8")
    return int(names.ExitCode.ISOLATION_REFUSED) if missing(found, required) else int(names.ExitCode.OK)


def _probed(given: argparse.Namespace) -> list[Layer]:
    network = settled(
        lambda: layers.network(os.environ, outside=given.outside),
        wait_s=NETWORK_RETRY_S if given.closed_network else 0.0,
        monotonic=time.monotonic,
        sleep=time.sleep,
    )
    return [
        layers.landlock(),
        *layers.process_layers(),
        layers.confined(runtime_class=given.runtime_class),
        layers.read_only_root(),
        layers.no_token(),
        network,
    ]


def settled(
    probe: Callable[[], Layer], *, wait_s: float, monotonic: Callable[[], float], sleep: Callable[[float], None]
) -> Layer:
    """Return what a probe says once its layer holds, or after `wait_s`."""
    deadline = monotonic() + wait_s
    while True:
        found = probe()
        if found.holds or monotonic() >= deadline:
            return found
        sleep(_POLL_S)


def missing(found: Sequence[Layer], required: Sequence[str]) -> list[str]:
    """Return the required layers that do not hold; one that no probe knows counts as missing."""
    holding = {layer.name for layer in found if layer.holds}
    return [name for name in required if name not in holding]


def report(found: Sequence[Layer], required: Sequence[str]) -> str:
    """Return the report as one line of JSON."""
    held = {
        layer.name: {"holds": layer.holds, "detail": layer.detail[:120], "required": layer.name in required}
        for layer in found
    }
    return json.dumps({"layers": held, "missing": missing(found, required)})


if __name__ == "__main__":
    sys.exit(main())
