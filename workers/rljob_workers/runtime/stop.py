"""`python -m rljob_workers.runtime.stop --config role.json`: what a pod's preStop hook runs.

Asks the process of this pod to stop by POST /stop on loopback and waits until it no longer answers: a trainer has
then written its checkpoint, a rollout finished or handed back its leases. A process that is gone already is a success.
"""

import argparse
import http.client
import pathlib
import sys
import time
from collections.abc import Callable, Sequence

from rljob_api import roles
from rljob_workers.runtime import boot

_HOST = "127.0.0.1"
_CALL_S = 5.0
_POLL_S = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 when the process stopped in time or was gone, 1 when it still ran after `--seconds`."""
    parser = argparse.ArgumentParser(prog="rljob-stop", description="Stops this pod's process in an orderly way.")
    parser.add_argument("--config", required=True, type=pathlib.Path, help="the role's resolved config, JSON")
    parser.add_argument("--seconds", required=True, type=float, help="how long to wait for its end")
    arguments = parser.parse_args(argv)
    port = boot.read_config(_HealthPort, arguments.config).health_port
    return 0 if stop(port, seconds=arguments.seconds, monotonic=time.monotonic, sleep=time.sleep) else 1


class _HealthPort(roles.CommonConfig, extra="ignore"):
    """The one field that is needed, whatever the role."""


def stop(port: int, *, seconds: float, monotonic: Callable[[], float], sleep: Callable[[float], None]) -> bool:
    """Ask and wait; return whether the health port fell silent within `seconds`."""
    deadline = monotonic() + seconds
    if not _answers(port, "POST", "/stop"):
        return True
    while monotonic() < deadline:
        if not _answers(port, "GET", "/healthz"):
            return True
        sleep(_POLL_S)
    return False


def _answers(port: int, method: str, path: str) -> bool:
    """Return whether something listens. Too busy to answer in time is not gone."""
    connection = http.client.HTTPConnection(_HOST, port, timeout=_CALL_S)
    try:
        connection.request(method, path)
        connection.getresponse().read()
    except TimeoutError:
        return True
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True


if __name__ == "__main__":
    sys.exit(main())
