"""A user's own environment, agent and reward in one file, in a ConfigMap that the pods mount."""

import json
import pathlib

from rljob_testing import own_code
from rljob_testing.cluster import whole_job
from rljob_testing.cluster.full import FullCluster
from rljob_testing.cluster.whole_job import Watched

NAME = "own-code"
FINISHED_S = 1200.0


def test_job_runs_with_the_code_of_a_config_map(
    all_asked: None, operator: FullCluster, volume_folder: pathlib.Path
) -> None:
    code = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}}
    changes: dict[str, object] = {
        "maxSteps": 2,
        "algorithm.promptsPerStep": 4,
        "algorithm.groupSize": 4,
        "evaluation": {},
        "workflow": own_code.WORKFLOW,
        "verifier.rewards": own_code.REWARDS,
        "observability.trajectoryDump": "All",
        # Rollouts write where several nodes may.
        "storage.checkpoints.accessMode": "ReadWriteMany",
    }
    whole_job.apply(
        operator,
        [
            *whole_job.surroundings(NAME, volume_folder),
            {**code, "data": {f"{own_code.STEM}.py": own_code.CODE}},
            whole_job.addition(NAME, changes),
        ],
    )
    job = Watched(operator, NAME)
    try:
        status = job.until(whole_job.is_over, FINISHED_S)
        assert (status["summary"], status["step"]) == ("Succeeded", 2), job.describe()
        uid = str(job.get()["metadata"]["uid"])  # type: ignore[index, call-overload]  # as the API server returns it
        dumps = sorted((volume_folder / uid).glob("**/dumps/rollout/*/*.jsonl"))
        rows = [json.loads(line) for path in dumps for line in path.read_text().splitlines()]
        assert rows
        assert {len(row["turns"]) for row in rows} == {2}
    finally:
        operator.kubectl("delete", "rljob", NAME, "--wait=false")
