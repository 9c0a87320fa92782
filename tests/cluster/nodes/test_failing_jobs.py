"""Jobs that cannot start: each ends when its time is over, with a reason, and names the pod that was in its way."""

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence

import pytest

from rljob_testing.cluster import whole_job
from rljob_testing.cluster.full import FullCluster
from rljob_testing.cluster.manifests import Object
from rljob_testing.cluster.whole_job import PodFacts, Watched, condition

DEADLINE_S = 90
# Images are not pulled and nothing is computed: what a busy machine may add to the deadline.
LATE_S = 180.0
QUIET: dict[str, object] = {
    **whole_job.QUIET,
    "schedulingDeadlineSeconds": DEADLINE_S,
    "startupDeadlineSeconds": DEADLINE_S,
}
JOBS: dict[str, dict[str, object]] = {
    "no-node": {"rollout.pod.nodeSelector": {"rljob.test/such-a-node": "none"}},
    "no-claim": {"storage": whole_job.UNCLAIMED},
    "crashing": {"rollout.pod.commandPrefix": ["sh", "-c", "exit 3"]},
    "hanging": {"verifier.pod.commandPrefix": list(whole_job.HANGS)},
}

# What reports on each while its time is not over: a condition and its reason.
TELLS = {
    "no-node": ("PodsScheduled", "Unschedulable"),
    "no-claim": ("PodsScheduled", "Unschedulable"),
    "crashing": ("RolloutReady", "CrashLoop"),
    "hanging": ("TrainerReady", "Starting"),
}
ROLES = ("coordinator", "rollout", "verifier", "trainer")


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """A job, and what was seen of it while its time was not over: the reporting condition, and its pods by role."""

    job: Watched
    condition: Object
    pods: Mapping[str, Sequence[str]]

    def end(self) -> str:
        """Return what the job's end says, once its time is over."""
        status = self.job.until(whole_job.holds("Failed"), DEADLINE_S + LATE_S)
        failed = condition(status, "Failed")
        waits = self.condition["type"] == "PodsScheduled"
        reason, field = ("Scheduling", "scheduling") if waits else ("Startup", "startup")
        assert failed["reason"] == f"{reason}DeadlineExceeded", self.job.describe()
        assert f"spec.{field}DeadlineSeconds = {DEADLINE_S}" in str(failed["message"])
        return str(failed["message"])


@pytest.fixture(scope="module")
def jobs(operator: FullCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Seen]]:
    """All of them at once, each seen before its end: a job that has ended gives up its rollouts and verifiers."""
    folder: pathlib.Path = tmp_path_factory.mktemp("unused")
    data, *_ = whole_job.surroundings("unused", folder)
    manifests = [whole_job.addition(name, {**QUIET, **changes}) for name, changes in JOBS.items()]
    whole_job.apply(operator, [data, *manifests])
    yield {name: _see(Watched(operator, name)) for name in JOBS}
    operator.kubectl("delete", "rljob", *JOBS, "--wait=false")


def _see(job: Watched) -> Seen:
    kind, reason = TELLS[job.name]
    # A machine without room for all of them shows here, and not as another end than the one that is expected.
    scheduled = "False" if kind == "PodsScheduled" else "True"

    def tells(status: Object) -> bool:
        told = condition(status, kind)["reason"] == reason and _has_pods(job)
        return told and condition(status, "PodsScheduled")["status"] == scheduled

    status = job.until(tells, DEADLINE_S)
    pods = {role: [PodFacts.of(pod).name for pod in job.pods(role)] for role in ROLES}
    return Seen(job, condition(status, kind), pods)


def _has_pods(job: Watched) -> bool:
    return all(job.pods(role) for role in ROLES)


def test_pod_without_a_node_is_named_with_what_the_scheduler_says(jobs: dict[str, Seen]) -> None:
    seen = jobs["no-node"]
    (rollout,) = seen.pods["rollout"]
    assert str(seen.condition["message"]).startswith(f"{rollout}: ")
    assert "didn't match Pod's node affinity/selector" in str(seen.condition["message"])
    assert f"Unschedulable: {rollout}: " in seen.end()


def test_claim_that_does_not_exist_is_named_with_the_pod_that_wants_it(jobs: dict[str, Seen]) -> None:
    seen = jobs["no-claim"]
    # Coordinator and trainer mount it; which of the two the scheduler refuses first is its own affair.
    wants = (*seen.pods["coordinator"], *seen.pods["trainer"])
    assert str(seen.condition["message"]).startswith(tuple(f"{pod}: " for pod in wants))
    assert 'persistentvolumeclaim "no-such-claim" not found' in str(seen.condition["message"])
    assert any(f"Unschedulable: {pod}: " in seen.end() for pod in wants)


def test_pod_that_crashes_again_and_again_is_named(jobs: dict[str, Seen]) -> None:
    seen = jobs["crashing"]
    (rollout,) = seen.pods["rollout"]
    assert seen.condition["message"] == rollout
    assert rollout in seen.end()


@pytest.mark.parametrize("role", ["trainer", "verifier"])
def test_pod_that_starts_and_never_answers_is_named(jobs: dict[str, Seen], role: str) -> None:
    seen = jobs["hanging"]
    (pod,) = seen.pods[role]
    assert pod in seen.end()
