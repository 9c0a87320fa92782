"""Agents that a job starts, on another node than its rollout: the example's program in pods, and HTTPS between both."""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from rljob_testing.cluster import images, whole_job
from rljob_testing.cluster.full import FullCluster
from rljob_testing.cluster.manifests import Object
from rljob_testing.cluster.whole_job import Watched

NAME = "agents"
STEPS, PROMPTS, GROUP = 8, 4, 4
RUNNING_S, REPLACED_S, FINISHED_S = 900.0, 120.0, 1200.0
KEY: Object = {"name": "RLJOB_GATEWAY_KEY", "valueFrom": {"secretKeyRef": {"name": "addition-gateway", "key": "key"}}}
# As images of users have it: in a folder of its own.
PROGRAM = "addition_agent.py"
MOUNTED: Object = {
    "volumes": [{"name": "program", "configMap": {"name": "agent-program"}}],
    "volumeMounts": [{"name": "program", "mountPath": "/agent"}],
}
JOB: dict[str, object] = {
    "maxSteps": STEPS,
    "algorithm.promptsPerStep": PROMPTS,
    "algorithm.groupSize": GROUP,
    "evaluation": {},
    "observability.trajectoryDump": "All",
    # Rollouts write where several nodes may.
    "storage.checkpoints.accessMode": "ReadWriteMany",
    "rollout.pod.env": [{"name": "OMP_NUM_THREADS", "value": "1"}, KEY],
    "rollout.pod.nodeSelector": whole_job.on_node("node-a"),
    # What a deleted pod leaves behind is soon offered again.
    "rollout.gateway": {"idleSeconds": 30},
    "agents": {
        "command": ["python", f"/agent/{PROGRAM}"],
        "replicas": 2,
        "pod": {"image": images.WORKER.name, "nodeSelector": whole_job.on_node("node-b"), **MOUNTED},
    },
}
# In a pod of agents: whom the environment makes a program trust, who is refused, and what is mounted.
PROBE = """
import json, os, urllib.error, urllib.request

def status(url, key):
    request = urllib.request.Request(url + "/v1/sessions", data=b"{}", headers={"Authorization": "Bearer " + key})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0

gateway = os.environ["RLJOB_GATEWAY"]
files = sorted(name for name in os.listdir("/etc/rljob-ca") if not name.startswith(".."))
asked = {"https": status(gateway, "another key"), "http": status(gateway.replace("https", "http"), "another key")}
print(json.dumps({"gateway": gateway, "files": files, **asked}))
"""


@pytest.fixture(scope="module")
def running(all_asked: None, operator: FullCluster, volume_folder: pathlib.Path) -> Iterator[Watched]:
    """The job, from its application until its agents' answers are trained."""
    program = (whole_job.EXAMPLES / PROGRAM).read_text()
    secret: Object = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "addition-gateway"}}
    config_map: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "agent-program"}}
    whole_job.apply(
        operator,
        [
            *whole_job.surroundings(NAME, volume_folder),
            {**secret, "stringData": {"key": "the key of this test's gateway"}},
            {**config_map, "data": {PROGRAM: program}},
            whole_job.addition(NAME, JOB, example="addition-agents-cpu"),
        ],
    )
    job = Watched(operator, NAME)
    try:
        job.until(lambda status: whole_job.holds("Running")(status) or whole_job.is_over(status), RUNNING_S)
        yield job
    finally:
        operator.kubectl("delete", "rljob", NAME, "--wait=false")


def _ready_agent(job: Watched) -> str:
    return next(pod.name for pod in job.staying("agents") if pod.ready)


@pytest.mark.covers("security")
def test_a_pod_of_agents_trusts_the_gateway_by_its_environment_and_needs_the_key(running: Watched) -> None:
    running.until(lambda _: any(pod.ready for pod in running.staying("agents")), RUNNING_S)
    said = json.loads(running.kubectl("exec", _ready_agent(running), "--", "python", "-c", PROBE))
    assert said == {
        "gateway": f"https://{NAME}-rollout.default.svc:50055", "files": ["ca.crt"], "https": 401, "http": 0,
    }  # fmt: skip


def test_a_job_whose_agents_are_on_another_node_and_lose_a_pod_trains_all_of_its_answers(
    running: Watched, volume_folder: pathlib.Path
) -> None:
    assert {pod.node for pod in running.staying("rollout")} == {"node-a"}, running.describe()
    before = running.uids("agents")
    assert {pod.node for pod in running.staying("agents")} == {"node-b"}, running.describe()
    running.delete_pod(_ready_agent(running))
    running.until(lambda _: running.has_fresh("agents", before), REPLACED_S)
    status = running.until(whole_job.is_over, FINISHED_S)
    assert (status["summary"], status["step"]) == ("Succeeded", STEPS), running.describe()
    metadata: Any = running.get()["metadata"]
    dumps = sorted((volume_folder / str(metadata["uid"])).glob("**/dumps/rollout/*/*.jsonl"))
    rows = [json.loads(line) for path in dumps for line in path.read_text().splitlines()]
    # Groups of the steps, and those that were begun for the next ones.
    assert len(rows) >= STEPS * PROMPTS * GROUP
