"""The operator as a process that is killed in the middle of many starts: the next one finishes them, nothing twice."""

import asyncio
import json
import pathlib

import pytest
from kubernetes.aio.client import Configuration

from rljob_operator.kube import client as cluster
from rljob_testing import fake_api, operator_stage
from rljob_testing.operator_process import OperatorProcess
from rljob_testing.operator_stage import IMAGES, Stage

NAMESPACE = "team"
NUM_JOBS = 12
WITHIN_S = 200.0


@pytest.mark.timeout(1200)  # two starts of a process and a dozen of jobs, on a machine that may be busy otherwise
async def test_starts_that_a_killed_operator_left_are_finished_by_the_next_and_nothing_is_made_twice(
    tmp_path: pathlib.Path,
) -> None:
    api = fake_api.FakeApi()
    async with fake_api.serving(api) as (address, side), operator_stage.said_status() as (said, coordinator):
        (tmp_path / "kubeconfig").write_text(json.dumps(fake_api.kubeconfig(address)))
        operator = OperatorProcess(
            tmp_path / "operator",
            kubeconfig=tmp_path / "kubeconfig",
            coordinators={NAMESPACE: coordinator},
            settings={"jobs": {"images": dict(IMAGES)}},
        )
        client = cluster.Client(
            cluster.ApiConnection(Configuration(host=side), in_cluster=False), qps=1000.0, burst=1000
        )
        stage = Stage(client, NAMESPACE, said, [])
        try:
            operator.start()
            await asyncio.to_thread(operator.ready)
            for number in range(NUM_JOBS):
                await stage.create(f"run-{number}")
            await operator_stage.until(lambda: api.of("jobs"), within_s=WITHIN_S)
            operator.kill()
            assert len(api.of("jobs")) < NUM_JOBS, "it was killed in the middle"
            operator.start()
            await operator_stage.until(lambda: len(api.of("jobs")) == NUM_JOBS, within_s=WITHIN_S)
            await asyncio.to_thread(operator.stop)
        finally:
            operator.end()
            await client.close()
    wanted = sorted(f"run-{number}-trainer-1" for number in range(NUM_JOBS))
    assert sorted(job["metadata"]["name"] for job in api.of("jobs")) == wanted
    assert sorted(api.writes.count(f"patch jobs {name}") for name in wanted) == [1] * NUM_JOBS
