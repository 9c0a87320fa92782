"""A judge that serves its own model in a pod: vLLM's real server under the posture and the policy of every pod."""

import pathlib

from rljob_testing.cluster import whole_job
from rljob_testing.cluster.full import FullCluster
from rljob_testing.cluster.whole_job import Watched

NAME = "own-judge"
FINISHED_S = 1200.0
POLICY = "builtin:smollm2-135m-instruct"


def test_a_job_serves_the_model_that_judges_it(
    all_asked: None, operator: FullCluster, volume_folder: pathlib.Path
) -> None:
    changes: dict[str, object] = {
        "maxSteps": 2,
        "algorithm.promptsPerStep": 2,
        "algorithm.groupSize": 4,
        "evaluation": {},
        "judge": {"model": POLICY, "maxModelLen": 1024, "extraArgs": {"max_num_seqs": 4}},
        "verifier.rewards": [
            {"name": "graded", "type": "judge", "config": {"scale": [1, 5], "verdict": "schema", "maxTokens": 16}}
        ],
    }
    whole_job.apply(operator, [*whole_job.surroundings(NAME, volume_folder), whole_job.addition(NAME, changes)])
    job = Watched(operator, NAME)
    try:
        status = job.until(whole_job.is_over, FINISHED_S)
        assert (status["summary"], status["step"]) == ("Succeeded", 2), job.describe()
    finally:
        operator.kubectl("delete", "rljob", NAME, "--wait=false")
