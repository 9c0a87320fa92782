"""What `rljob ui --cluster` shows of a namespace. `kubectl` is a small program here that answers from files."""

import json
from collections.abc import Callable, Mapping

import pytest
from typer.testing import Result

from rljob_api import cluster_placement, errors
from rljob_testing.fake_kubectl import FakeKubectl
from rljob_workers.cli import kubectl as real
from rljob_workers.cli.ui import cluster_runs, views
from rljob_workers.cli.ui import server as servers

RESOURCE = "rljobs.rljob.dev"
UID = "2b1c8d5e-0000-4000-8000-000000000001"
TOKEN = "the-token"
ALL = views.TrajectoryQuery(row_filter=servers.trajectory_query({}).row_filter)


def condition(kind: str, at: str = "2026-01-01T00:00:00Z", **changes: str) -> dict[str, str]:
    return {"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": at} | changes


RUNNING: Mapping[str, object] = {
    "summary": "Running",
    "step": 2,
    "conditions": [condition("Running")],
    "reward": {"mean": "0.62", "step": 2},
    "evaluation": [{"suite": "held_out", "accuracy": "0.5", "step": 0}],
    "lastCheckpoint": {"step": 2, "path": "s3://x", "time": "2026-01-01T00:00:00Z"},
}


def job(name: str, status: Mapping[str, object]) -> dict[str, object]:
    metadata = {"name": name, "namespace": "research", "uid": UID, "creationTimestamp": "2025-12-31T00:00:00Z"}
    return {"metadata": metadata, "spec": {"maxSteps": 40}, "status": status}


def coordinator(name: str) -> dict[str, object]:
    ready = {"type": "Ready", "status": "True"}
    state = {"restartCount": 0, "state": {"running": {}}}
    return {
        "metadata": {"name": f"{name}-coordinator-0", "labels": {"rljob.dev/role": "coordinator"}},
        "status": {"phase": "Running", "conditions": [ready], "containerStatuses": [state]},
    }


def step(number: int, reward: float) -> str:
    return json.dumps({"kind": "step", "step": number, "started_at": 0.0, "finished_at": 1.0, "reward_mean": reward})


HISTORY_WORDS = f"exec sums-coordinator-0 tail {cluster_placement.state_folder(UID)}/history.jsonl"


@pytest.fixture
def runs(kubectl: FakeKubectl) -> cluster_runs.ClusterRuns:
    kubectl.answers(f"get {RESOURCE} sums", job("sums", RUNNING))
    kubectl.answers("get pods", {"items": [coordinator("sums")]})
    kubectl.answers("get events", {"items": []})
    return cluster_runs.ClusterRuns(real.Kubectl(), namespace="research")


def test_jobs_are_listed_with_their_state_and_last_values(kubectl: FakeKubectl, runs: cluster_runs.ClusterRuns) -> None:
    ended = {"summary": "Succeeded", "conditions": [condition("Complete", "2026-02-01T00:00:00Z")]}
    waiting = {"summary": "Queued", "conditions": []}
    kubectl.answers(f"get {RESOURCE}", {"items": [job("sums", RUNNING), job("old", ended), job("new", waiting)]})
    listed = runs.listed()
    assert listed["folder"] == "research"
    shown = [(row["name"], row["state"], row["step"]) for row in listed["runs"]]  # type: ignore[attr-defined]
    assert shown == [("old", "finished", 0), ("sums", "running", 2), ("new", "queued", 0)]
    sums = next(row for row in listed["runs"] if row["name"] == "sums")  # type: ignore[attr-defined]
    assert (sums["reward"], sums["held_out"], sums["max_steps"]) == (0.62, 0.5, 40)


def test_a_job_whose_status_is_not_ours_is_listed_with_its_problem(
    kubectl: FakeKubectl, runs: cluster_runs.ClusterRuns
) -> None:
    kubectl.answers(f"get {RESOURCE}", {"items": [job("odd", {"step": "many"}), job("sums", RUNNING)]})
    by_name = {row["name"]: row for row in runs.listed()["runs"]}  # type: ignore[attr-defined]
    assert by_name["odd"]["state"] == "unreadable"
    assert "odd" in by_name["odd"]["problem"]
    assert by_name["sums"]["state"] == "running"


def test_curves_of_a_job_are_its_coordinators_history_which_is_read_once_a_step(
    kubectl: FakeKubectl, runs: cluster_runs.ClusterRuns
) -> None:
    kubectl.answers(HISTORY_WORDS, f"{step(1, 0.25)}\n{step(2, 0.5)}\n")
    for _ in range(2):
        shown = runs.run("sums")
        assert shown["charts"][0]["series"]["mean"] == [(1, 0.25), (2, 0.5)]  # type: ignore[index]
    assert sum("exec" in call for call in kubectl.calls()) == 1
    assert shown["checkpoints"] == [2]
    assert any("2 of 40 steps done" in line for line in shown["why"])  # type: ignore[attr-defined]


def test_who_may_not_exec_into_a_coordinator_sees_all_but_curves_and_why(runs: cluster_runs.ClusterRuns) -> None:
    shown = runs.run("sums")
    assert shown["charts"] == []
    assert shown["why"][-1].startswith("no curves: kubectl exec: Error from server")  # type: ignore[index]
    assert shown["state"] == "running"


def test_a_job_whose_coordinator_is_gone_keeps_the_curves_that_were_read(
    kubectl: FakeKubectl, runs: cluster_runs.ClusterRuns
) -> None:
    kubectl.answers(HISTORY_WORDS, f"{step(1, 0.25)}\n")
    before = runs.run("sums")["charts"]
    kubectl.answers(
        f"get {RESOURCE} sums", job("sums", {"summary": "Succeeded", "conditions": [condition("Complete")]})
    )
    kubectl.answers("get pods", {"items": []})
    after = runs.run("sums")
    assert (after["charts"], after["state"]) == (before, "finished")
    assert not any("no curves" in line for line in after["why"])  # type: ignore[attr-defined]


def test_trajectories_of_a_cluster_are_refused_with_where_they_are(runs: cluster_runs.ClusterRuns) -> None:
    with pytest.raises(errors.DataError, match="on its volumes"):
        runs.trajectories("sums", ALL)


@pytest.mark.parametrize("name", ["..", "-n", "sums.yaml/x", "Sums", ""])
def test_what_is_no_name_of_a_job_is_not_asked_for(
    kubectl: FakeKubectl, runs: cluster_runs.ClusterRuns, name: str
) -> None:
    with pytest.raises(errors.ManifestError, match="name of Kubernetes"):
        runs.run(name)
    assert kubectl.calls() == []


def test_a_folder_of_this_machine_and_a_cluster_are_not_combined(rljob: Callable[..., Result]) -> None:
    result = rljob("ui", "runs", "--namespace", "research")
    assert result.exit_code == 2
    assert "RUNS is runs, a folder of this machine" in result.stderr
