"""`helm install`, `kubectl apply`, and what then happens to the job, its pods and its model: all parts real.

The images come from the project's Dockerfiles, the operator from the chart.
"""

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from rljob_testing.cluster import whole_job
from rljob_testing.cluster.full import FullCluster
from rljob_testing.cluster.manifests import Object
from rljob_testing.cluster.whole_job import Watched

# Loading vLLM and DeepSpeed on two cores takes one to two minutes, a step some seconds.
RUNNING_S, FINISHED_S, GONE_S = 900.0, 900.0, 120.0
SMALL: dict[str, object] = {
    "maxSteps": 3,
    "algorithm.promptsPerStep": 4,
    "algorithm.groupSize": 4,
    "checkpoint.everySteps": 1,
    "evaluation": {},
    "cleanupPolicy": {"onSuccess": {"rollout": "Delete", "verifier": "Delete", "trainer": "Keep"}},
}


@pytest.fixture(scope="module")
def finished(operator: FullCluster, volume_folder: pathlib.Path) -> Iterator[Watched]:
    """A small job, from its application to its end."""
    name = "addition"
    objects = [*whole_job.surroundings(name, volume_folder), whole_job.addition(name, SMALL)]
    whole_job.apply(operator, objects)
    job = Watched(operator, name)
    job.until(whole_job.holds("Running"), RUNNING_S)
    job.until(whole_job.is_over, FINISHED_S)
    yield job
    operator.kubectl("delete", "rljob", name, "--wait=false")


def test_job_succeeds_after_all_roles_were_ready(finished: Watched) -> None:
    status = finished.status()
    assert status["summary"] == "Succeeded", finished.describe()
    assert status["step"] == SMALL["maxSteps"]
    summaries = [summary for _, summary in finished.seen]
    assert summaries.index("Running") < summaries.index("Succeeded"), summaries


def test_trained_model_is_on_the_volume(finished: Watched, volume_folder: pathlib.Path) -> None:
    metadata = finished.get()["metadata"]
    assert isinstance(metadata, dict)
    exported = sorted((volume_folder / str(metadata["uid"]) / "export").rglob("*"))
    assert {"config.json", "model.safetensors"} <= {path.name for path in exported}, exported


def test_pods_are_cleaned_up_as_the_policy_says(finished: Watched) -> None:
    def gone(_status: Object) -> bool:
        return not finished.pods("rollout") and not finished.pods("verifier")

    finished.until(gone, GONE_S)
    assert finished.pods("trainer"), "kept for its logs"


@pytest.mark.covers("security")
def test_pods_of_the_job_held_no_token_and_ran_without_rights(finished: Watched) -> None:
    (trainer,) = finished.pods("trainer")
    spec: Any = trainer["spec"]
    (container,) = spec["containers"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert not [volume for volume in spec["volumes"] if "projected" in volume]
