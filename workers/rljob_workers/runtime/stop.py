"""`python -m rljob_workers.runtime.stop --config role.json`: what a pod's preStop hook runs.

Asks the process of this pod to stop by POST /stop, with the token that only its own user can read, and waits until it
no longer answers: a trainer has then written its checkpoint, a rollout finished or handed back its leases. A process
that is gone already is a success.
"""

import argparse
import http.client
import pathlib
import sys
import time
from collections.abc import Callable, Sequence

from rljob_api import process_config
from rljob_workers.runtime import boot, health

_HOST = "127.0.0.1"
_CALL_S = 5.0
_POLL_S = 0.5
_ACCEPTED, _BUSY = 202, 0


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 when the process stopped in time or was gone, 1 when it still ran after `--seconds`."""
    parser = argparse.ArgumentParser(prog="rljob-stop", description="Stops this pod's process in an orderly way.")
    parser.add_argument("--config", required=True, type=pathlib.Path, help="the role's resolved config, JSON")
    parser.add_argument("--seconds", required=True, type=float, help="how long to wait for its end")
    arguments = parser.parse_args(argv)
    config = boot.read_config(_Process, arguments.config)
    token = health.stop_token(health.stop_token_file(config))
    stopped = stop(config.health_port, token, seconds=arguments.seconds, monotonic=time.monotonic, sleep=time.sleep)
    return 0 if stopped else 1


class _Process(process_config.ProcessConfig, extra="ignore"):
    """The fields that every role has."""


def stop(
    port: int, token: str, *, seconds: float, monotonic: Callable[[], float], sleep: Callable[[float], None]
) -> bool:
    """Ask and wait; return whether the health port fell silent within `seconds`. Who is not heard does not wait."""
    deadline = monotonic() + seconds
    answer = _answer(port, "POST", "/stop", token)
    if answer is None:
        return True
    if answer not in (_ACCEPTED, _BUSY):
        sys.stderr.write(f"rljob-stop: the process on port {port} did not accept the stop request: {answer}\n")
        return False
    while monotonic() < deadline:
        if _answer(port, "GET", "/healthz") is None:
            return True
        sleep(_POLL_S)
    return False


def _answer(port: int, method: str, path: str, token: str = "") -> int | None:
    """Return the status of an answer; None where nothing listens. Too busy to answer in time is not gone."""
    connection = http.client.HTTPConnection(_HOST, port, timeout=_CALL_S)
    try:
        connection.request(method, path, headers={health.STOP_HEADER: token} if token else {})
        return connection.getresponse().status
    except TimeoutError:
        return _BUSY
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())
