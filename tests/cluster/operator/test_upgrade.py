"""The operator is replaced by its next version, whose manifest has a field more, while jobs make steps: on a real API
server, with processes of both versions. Stand-ins answer for the coordinators and play the kubelets.
"""

import contextlib
import json
import os
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

import rljob_api
from rljob_api import enums
from rljob_operator.kube import kinds
from rljob_operator.policies.pinning import RENDERED_BY
from rljob_testing import next_version, operator_installation, operator_nodes
from rljob_testing.charts import Helm, program_or_skip
from rljob_testing.operator_api import ClusterApi
from rljob_testing.operator_installation import Installed
from rljob_testing.operator_load import Shape, standing_in, stepping
from rljob_testing.operator_pair import OperatorPair
from rljob_testing.operator_series import total

# 50 by hand: RLJOB_UPGRADED_JOBS=50.
NUM_JOBS = int(os.environ.get("RLJOB_UPGRADED_JOBS", "6"))
NAMESPACE, WITHIN_S = "upgraded", 600.0
SHAPE = Shape(minimal=True)
# Longer than any pause of an operator that has something to write about these jobs.
SETTLED_S = 10.0


@pytest.fixture
def versions(installed: Installed, tmp_path: pathlib.Path) -> Iterator[tuple[OperatorPair, next_version.NextVersion]]:
    """Operator a of this version, b of the next one; all runs make steps."""
    following = next_version.make(tmp_path / "next")
    helm = Helm(program_or_skip("helm"), tmp_path)
    with standing_in() as (stand_in, address), stepping(stand_in), operator_nodes.played(installed.cluster):
        pair = OperatorPair(installed, tmp_path, NAMESPACE, address, environments={"b": following.environment})
        try:
            yield pair, following
        finally:
            pair.end()
            operator_installation.grant(installed.cluster, helm, system=operator_installation.NAMESPACE)


@pytest.fixture
def api(installed: Installed) -> Iterator[ClusterApi]:
    with contextlib.closing(ClusterApi(installed.cluster)) as client:
        yield client


def _pods(pair: OperatorPair) -> dict[str, tuple[str, int]]:
    """Return uid and restarts of each pod by name."""
    return {
        pod["metadata"]["name"]: (
            pod["metadata"]["uid"],
            sum(status["restartCount"] for status in pod["status"].get("containerStatuses", ())),
        )
        for pod in pair.load.pods()
    }


def _templates(api: ClusterApi) -> dict[tuple[str, str], Any]:
    """Return the pod template of everything that makes pods."""
    return {
        (kind.kind, made["metadata"]["name"]): made["spec"]["template"]
        for kind in kinds.WORKLOADS
        for made in api.list(kind, NAMESPACE)
    }


def _steps(api: ClusterApi) -> list[int]:
    return [job["status"].get("step", 0) for job in api.list(kinds.RLJOB, NAMESPACE)]


def _config(api: ClusterApi, job: str) -> dict[str, Any]:
    """Return what a job's rollouts read, and who rendered it."""
    (config,) = (
        each
        for each in api.list(kinds.BY_NAME["ConfigMap"], NAMESPACE, selector=kinds.MANAGED)
        if each["metadata"]["name"] == f"{job}-config"
    )
    document: dict[str, Any] = json.loads(config["data"][f"{enums.Role.ROLLOUT}.json"])
    return {"spec": document["spec"], "rendered_by": config["metadata"]["annotations"][RENDERED_BY]}


@pytest.mark.timeout(1800)
def test_upgrade_to_a_version_with_a_new_field_touches_no_pod_of_jobs_that_step(
    installed: Installed, api: ClusterApi, versions: tuple[OperatorPair, next_version.NextVersion]
) -> None:
    pair, following = versions
    old, new = pair.operators["a"], pair.operators["b"]
    old.start()
    old.ready()
    pair.load.create(SHAPE, 0, NUM_JOBS)
    pair.load.until(lambda: len(pair.running_since()) == NUM_JOBS, within_s=WITHIN_S)
    pods, templates, running, steps = _pods(pair), _templates(api), pair.running_since(), _steps(api)
    assert len(pods) == NUM_JOBS * SHAPE.pods

    # The order of an upgrade by Helm: the definition, the next operator, and the end of this one.
    following.install_definition(installed.cluster)
    new.start()
    new.ready()
    old.stop()
    new.until(lambda: total(new.series(), "rljob_operator_leader") == 1, within_s=WITHIN_S)
    new.until(lambda: total(new.series(), "rljob_operator_reconcile_seconds_count") >= NUM_JOBS, within_s=WITHIN_S)
    new.until(lambda: total(new.series(), "rljob_operator_status_streams") == NUM_JOBS, within_s=WITHIN_S)
    pair.load.until(lambda: min(_steps(api)) > max(steps), within_s=WITHIN_S)
    time.sleep(SETTLED_S)
    assert _pods(pair) == pods
    assert _templates(api) == templates
    assert running.items() <= pair.running_since().items(), "they run all the time"

    # An edit of a job that runs reaches its config, in the schema that its pods know; its pods stay.
    pair.load.edit(0, {"rollout": {"replicas": SHAPE.rollouts + 1}})
    pair.load.until(lambda: pair.load.count("Pod") == NUM_JOBS * SHAPE.pods + 1, within_s=WITHIN_S)
    assert pods.items() <= _pods(pair).items()
    assert _templates(api) == templates
    kept = _config(api, "job-0")
    assert kept["spec"]["rollout"]["replicas"] == SHAPE.rollouts + 1
    assert next_version.FIELD not in kept["spec"]
    assert kept["rendered_by"] == rljob_api.__version__

    # A job that begins now is the next version's.
    pair.load.create(SHAPE, NUM_JOBS, NUM_JOBS + 1)
    pair.load.until(lambda: len(pair.running_since()) == NUM_JOBS + 1, within_s=WITHIN_S)
    begun = _config(api, f"job-{NUM_JOBS}")
    assert begun["spec"][next_version.FIELD] == 100
    assert begun["rendered_by"] == next_version.VERSION
    made = _templates(api)["StatefulSet", f"job-{NUM_JOBS}-coordinator"]
    (container,) = made["spec"]["containers"]
    assert container["startupProbe"]["periodSeconds"] == next_version.PROBE_PERIOD_S
