"""A runtime's sidecar in a role's pod: it is killed when the role ends, and says nothing of how that was."""

from typing import Any

import pytest

from rljob_operator.kube import projection
from rljob_operator.model import Pod

KILLED = {"state": {"terminated": {"exitCode": 137, "reason": "Error", "finishedAt": "1970-01-01T00:00:30Z"}}}
ENDED = {"state": {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": "1970-01-01T00:00:20Z"}}}
RUNS: dict[str, Any] = {"state": {"running": {"startedAt": "1970-01-01T00:00:12Z"}}}


def pod(phase: str, *, sidecar: dict[str, Any], role: dict[str, Any]) -> Pod:
    metadata = {
        "name": "run-trainer-1-0", "namespace": "default", "uid": "a", "resourceVersion": "1",
        "labels": {projection.ROLE_LABEL: "trainer", projection.UID_LABEL: "u"},
        "ownerReferences": [{"uid": "owner", "controller": True}],
    }  # fmt: skip
    status = {
        "phase": phase,
        "initContainerStatuses": [{"name": "log", **sidecar}],
        "containerStatuses": [{"name": "rljob", **role}],
    }
    view = projection.project_pod({"metadata": metadata, "status": status})
    assert view is not None
    return view.pod


def test_a_role_that_succeeded_is_not_taken_for_its_killed_sidecar() -> None:
    found = pod("Succeeded", sidecar=KILLED, role=ENDED)
    assert (found.exit_code, found.container_reason) == (0, "Completed")


def test_a_sidecar_that_crashes_is_no_restart_and_no_refused_configuration_of_the_role() -> None:
    crashed = {**RUNS, "restartCount": 3, "lastState": {"terminated": {"exitCode": 78}}}
    found = pod("Running", sidecar=crashed, role=RUNS)
    assert (found.restarts, found.last_exit_code) == (0, None)


@pytest.mark.parametrize("exit_code", [3, 137])
def test_a_container_that_fails_before_the_role_starts_speaks_for_the_pod(exit_code: int) -> None:
    failed = {"state": {"terminated": {"exitCode": exit_code, "finishedAt": "1970-01-01T00:00:20Z"}}}
    found = pod("Failed", sidecar=failed, role={"state": {"waiting": {"reason": "PodInitializing"}}})
    assert found.exit_code == exit_code
