"""Which processes of a run directory run now, as the runner wrote them down, and what their coordinator says."""

import json

from rljob_api import errors, names, roles, types
from rljob_workers.local import process_tree, rundir, supervise
from rljob_workers.rpc import status

# A coordinator that is gone refuses at once; one that is busy, or on a loaded machine, may need a while.
_ANSWER_S = 10.0


def pids(directory: rundir.RunDir) -> dict[str, int]:
    """Return the pid of each process by name (of its guard, before it reported its own); none once the run ended."""
    try:
        found = json.loads(directory.pids.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return {name: entry["pid"] or entry["guard"] for name, entry in found.items()}


def is_running(directory: rundir.RunDir) -> bool:
    """Return whether any process of the run runs."""
    return any(map(process_tree.is_running, pids(directory).values()))


def states(directory: rundir.RunDir) -> dict[str, supervise.State]:
    """Return how each process stands that the runner wrote down."""
    return {
        name: supervise.State(role=names.Role(name.split("-")[0]), running=process_tree.is_running(pid))
        for name, pid in pids(directory).items()
    }


def ask(directory: rundir.RunDir) -> types.RunStatus | None:
    """Return the coordinator's answer, None if it does not run or does not answer."""
    path = directory.configs / f"{names.Role.COORDINATOR}.json"
    if not path.exists() or not directory.pids.exists():
        return None
    config = roles.CoordinatorConfig.model_validate_json(path.read_bytes())
    client = status.StatusClient(
        address=f"{config.bind_host}:{config.control_port}", tls=config.tls, timeout_s=_ANSWER_S
    )
    try:
        return client.status()
    except errors.UnavailableError:
        return None
    finally:
        client.close()
