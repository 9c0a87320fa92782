"""Jobs that cannot start: each ends when its time is over, with a reason, and names the pod that stood in its way."""

import pathlib
from collections.abc import Iterator

import pytest

from rljob_testing.cluster import whole_job
from rljob_testing.cluster.full import FullCluster
from rljob_testing.cluster.manifests import Object
from rljob_testing.cluster.whole_job import PodFacts, Watched, condition

DEADLINE_S = 90
# Images are not pulled and nothing is computed: what a busy machine may add to the deadline.
LATE_S = 180.0
# In place of an engine, which would take gigabytes of memory and tell no more about a job that cannot start.
HANGS = ["sh", "-c", "exec sleep 3600"]
QUIET: dict[str, object] = {
    "startupDeadlineSeconds": DEADLINE_S,
    "storage": {"emptyDir": True},
    "rollout.drainSeconds": 1,
    "rollout.pod.commandPrefix": HANGS,
    "trainer.pod.commandPrefix": HANGS,
}
JOBS: dict[str, dict[str, object]] = {
    "no-node": {"rollout.pod.nodeSelector": {"rljob.test/such-a-node": "none"}},
    "no-claim": {"storage": {"claimName": "no-such-claim"}},
    "crashing": {"rollout.pod.commandPrefix": ["sh", "-c", "exit 3"]},
    "hanging": {"verifier.pod.commandPrefix": HANGS},
}


@pytest.fixture(scope="module")
def jobs(operator: FullCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Watched]]:
    """All of them at once: they wait for their deadlines together."""
    folder: pathlib.Path = tmp_path_factory.mktemp("unused")
    data, *_ = whole_job.surroundings("unused", folder)
    manifests = [whole_job.addition(name, {**QUIET, **changes}) for name, changes in JOBS.items()]
    whole_job.apply(operator, [data, *manifests])
    yield {name: Watched(operator, name) for name in JOBS}
    operator.kubectl("delete", "rljob", *JOBS, "--wait=false")


def _names(job: Watched, role: str) -> list[str]:
    return [PodFacts.of(pod).name for pod in job.pods(role)]


def _end(job: Watched) -> str:
    """Return what the job's end says, once its time is over."""
    status = job.until(whole_job.holds("Failed"), DEADLINE_S + LATE_S)
    failed = condition(status, "Failed")
    assert failed["reason"] == "StartupDeadlineExceeded", job.describe()
    assert f"spec.startupDeadlineSeconds = {DEADLINE_S}" in str(failed["message"])
    return str(failed["message"])


def _is_unschedulable(status: Object) -> bool:
    return condition(status, "PodsScheduled")["reason"] == "Unschedulable"


def test_pod_without_a_node_is_named_with_what_the_scheduler_says(jobs: dict[str, Watched]) -> None:
    job = jobs["no-node"]
    found = condition(job.until(_is_unschedulable, DEADLINE_S), "PodsScheduled")
    (rollout,) = _names(job, "rollout")
    assert str(found["message"]).startswith(f"{rollout}: "), found
    assert "didn't match Pod's node affinity/selector" in str(found["message"])
    assert f"Unschedulable: {rollout}: " in _end(job)


def test_claim_that_does_not_exist_is_named_with_the_pod_that_wants_it(jobs: dict[str, Watched]) -> None:
    job = jobs["no-claim"]
    found = condition(job.until(_is_unschedulable, DEADLINE_S), "PodsScheduled")
    (coordinator,) = _names(job, "coordinator")
    assert str(found["message"]).startswith(f"{coordinator}: "), found
    assert 'persistentvolumeclaim "no-such-claim" not found' in str(found["message"])
    assert f"Unschedulable: {coordinator}: " in _end(job)


def test_pod_that_crashes_again_and_again_is_named(jobs: dict[str, Watched]) -> None:
    job = jobs["crashing"]

    def is_crash_loop(status: Object) -> bool:
        return condition(status, "RolloutReady")["reason"] == "CrashLoop"

    found = condition(job.until(is_crash_loop, DEADLINE_S), "RolloutReady")
    (rollout,) = _names(job, "rollout")
    assert found["message"] == rollout
    assert rollout in _end(job)


@pytest.mark.parametrize("role", ["trainer", "verifier"])
def test_pod_that_starts_and_never_answers_is_named(jobs: dict[str, Watched], role: str) -> None:
    job = jobs["hanging"]
    job.until(lambda _status: bool(job.pods(role)), DEADLINE_S)
    (pod,) = _names(job, role)
    assert pod in _end(job)
