"""Which processes of a run directory run now, as the runner wrote them down."""

import json

from rljob_workers.local import process_tree, rundir


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
