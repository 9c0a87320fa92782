"""Which processes of a run directory run now, as the runner wrote them down, and what their coordinator says."""

import json
import threading
from typing import Protocol

from rljob_api import enums, errors, process_config, types
from rljob_workers.local import processes
from rljob_workers.local.run import supervise
from rljob_workers.local.rundir import layout
from rljob_workers.rpc import status

# A coordinator that is gone refuses at once; one that is busy, or on a loaded machine, may need a while.
_ANSWER_S = 10.0


def pids(directory: layout.RunDir) -> dict[str, int]:
    """Return the pid of each process by name (of its guard, before it reported its own); none once the run ended."""
    try:
        entries = json.loads(directory.pids.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return {name: entry["pid"] or entry["guard"] for name, entry in entries.items()}


def is_running(directory: layout.RunDir) -> bool:
    """Return whether any process of the run runs."""
    return any(map(processes.is_running, pids(directory).values()))


def states(directory: layout.RunDir) -> dict[str, supervise.State]:
    """Return the status of each process that the runner wrote down."""
    return {
        name: supervise.State(role=enums.Role(name.split("-")[0]), running=processes.is_running(pid))
        for name, pid in pids(directory).items()
    }


def ask(directory: layout.RunDir) -> types.RunStatus | None:
    """Return the coordinator's answer, None if it does not run or does not answer."""
    path = directory.configs / f"{enums.Role.COORDINATOR}.json"
    if not path.exists() or not directory.pids.exists():
        return None
    config = process_config.CoordinatorConfig.model_validate_json(path.read_bytes())
    client = status.StatusClient(
        address=f"{config.bind_host}:{config.control_port}", tls=config.tls, timeout_s=_ANSWER_S
    )
    try:
        return client.status()
    except errors.UnavailableError:
        return None
    finally:
        client.close()


class StatusSource(Protocol):
    """Source of the newest status."""

    def latest(self) -> types.RunStatus | None:
        """Return it, None if the coordinator has not answered yet."""


class Poller:
    """Asks once a `period_s` on a thread; an unanswered call leaves the last answer as it is."""

    def __init__(self, client: status.StatusClient, *, period_s: float = 0.5) -> None:
        """`close` closes the client."""
        self._client, self._period_s = client, period_s
        self._latest: types.RunStatus | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="status", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def latest(self) -> types.RunStatus | None:
        """Return the newest answer, None before the first."""
        return self._latest

    def close(self) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()
        self._client.close()

    def _poll(self) -> None:
        while not self._end.wait(self._period_s):
            try:
                self._latest = self._client.status()
            except errors.RLJobError:
                # A coordinator that starts again answers soon; until then the last answer is the best there is.
                continue
