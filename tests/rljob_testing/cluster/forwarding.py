"""A port of a pod on loopback, as `kubectl port-forward` offers it."""

import contextlib
import re
import subprocess
from collections.abc import Iterator

from rljob_testing.cluster.full import FullCluster

_SAYS = re.compile(r"Forwarding from (127\.0\.0\.1:\d+) ->")


@contextlib.contextmanager
def forwarded(cluster: FullCluster, pod: str, port: int) -> Iterator[str]:
    """Yield the address on loopback that leads to a port of a pod. Fails with kubectl's words if there is no way."""
    command = cluster.plane.kubectl_command("port-forward", "--address=127.0.0.1", f"pod/{pod}", f":{port}")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            found = _SAYS.match(said)
            assert found is not None, said
            yield found[1]
        finally:
            process.kill()
