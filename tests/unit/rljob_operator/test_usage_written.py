"""When what was used is written, from a pod of the API server to the status."""

import dataclasses
import json
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from rljob_api import enums
from rljob_api.manifest.status import UsageStatus
from rljob_operator import clock
from rljob_operator.kube import projection
from rljob_operator.model import Observed
from rljob_operator.telemetry.metrics import Metrics
from rljob_testing.operator_runs import KEY, Run


def usage_of(run: Run) -> UsageStatus:
    assert run.cluster.job is not None
    assert run.cluster.job.status is not None
    assert run.cluster.job.status.usage is not None
    return run.cluster.job.status.usage


def running() -> Run:
    """Return a run under way, each of whose rollouts has had two GPUs and half a core since its start."""
    run = Run()
    run.settle()
    run.cluster.says(enums.Phase.RUNNING, step=1)
    run.settle()
    for name, pod in run.cluster.pods.items():
        if pod.role is enums.Role.ROLLOUT:
            run.cluster.pods[name] = dataclasses.replace(
                pod, gpus=2, cpu_milli=500, scheduled_at=run.clock.now(), finished_at=0.0
            )
    return run


def test_time_alone_writes_nothing_and_a_step_writes_what_was_used_meanwhile() -> None:
    run = running()
    run.settle()
    calls = list(run.cluster.calls)
    run.clock.tick(100.0)
    run.reconcile()
    assert run.cluster.calls == calls
    run.cluster.says(enums.Phase.RUNNING, step=2)
    assert run.cluster.report is not None
    said = dataclasses.replace(run.cluster.report.run, tokens={"generated": 70, "trained": 50})
    run.cluster.report = dataclasses.replace(run.cluster.report, run=said)
    run.reconcile()
    used = usage_of(run)
    assert 2 * 2 * 100 <= used.gpu_seconds <= 2 * 2 * 102
    assert (used.generated_tokens, used.trained_tokens) == (70, 50)


def test_an_operator_that_was_away_for_a_day_adds_the_day_once() -> None:
    run = running()
    run.cluster.says(enums.Phase.RUNNING, step=2)
    run.reconcile()
    before = usage_of(run).gpu_seconds
    run.clock.tick(86_400.0)
    run.cluster.says(enums.Phase.RUNNING, step=3)
    run.reconcile()
    assert usage_of(run).gpu_seconds - before == 2 * 2 * 86_400
    run.cluster.says(enums.Phase.RUNNING, step=4)
    run.reconcile()
    assert usage_of(run).gpu_seconds - before == 2 * 2 * 86_400


def test_a_pod_that_ended_is_written_before_it_can_go() -> None:
    run = running()
    run.settle()
    name = next(name for name, pod in run.cluster.pods.items() if pod.role is enums.Role.ROLLOUT)
    run.clock.tick(50.0)
    ended = dataclasses.replace(
        run.cluster.pods[name], phase="Succeeded", ready=False, finished_at=run.clock.now() - 10.0
    )
    run.cluster.pods[name] = ended
    run.reconcile()
    assert usage_of(run).as_of >= clock.to_timestamp(ended.finished_at)
    counted = usage_of(run).gpu_seconds
    del run.cluster.pods[name]
    run.reconcile()
    assert usage_of(run).gpu_seconds >= counted


POD: dict[str, Any] = {
    "metadata": {
        "name": "p", "uid": "u", "labels": {"rljob.dev/uid": "j", "rljob.dev/role": "rollout"},
        "ownerReferences": [{"uid": "d", "controller": True}],
    },
    "spec": {
        "containers": [
            {
                "name": "rljob",
                "resources": {"requests": {"cpu": "1500m"}, "limits": {"cpu": "4", "nvidia.com/gpu": "2"}},
            },
            {"name": "proxy", "resources": {"limits": {"cpu": "250m", "memory": "1Gi"}}},
            {"name": "bare"},
        ]
    },
    "status": {"phase": "Running"},
}  # fmt: skip


def test_a_pod_asks_for_what_its_containers_do_and_a_limit_without_a_request_is_one() -> None:
    kept = projection.project_pod(json.loads(json.dumps(POD)))
    assert kept is not None
    assert (kept.pod.gpus, kept.pod.cpu_milli) == (2, 1750)


def samples(metrics: Metrics, name: str) -> dict[str, float]:
    """Return the values of a family by the last label."""
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {
        list(sample.labels.values())[-1]: sample.value
        for family in families
        for sample in family.samples
        if sample.name == name
    }


def test_metrics_are_of_the_moment_never_fall_when_a_pod_goes_and_name_the_owners() -> None:
    run = running()
    assert run.cluster.job is not None
    metadata = run.cluster.job.metadata.model_copy(update={"labels": {"team": "search", "note": "x"}})
    run.cluster.job = run.cluster.job.model_copy(update={"metadata": metadata})
    metrics = Metrics(now=run.clock.now, owner_labels=("team",))

    def look() -> float:
        assert run.cluster.job is not None
        pods = tuple(run.cluster.pods.values())
        metrics.saw(KEY, Observed(job=run.cluster.job, pods=pods), certificate_ends={})
        return samples(metrics, "rljob_usage_gpu_seconds").get("rollout", 0.0)

    first = look()
    run.clock.tick(60.0)
    assert samples(metrics, "rljob_usage_gpu_seconds")["rollout"] == first + 2 * 2 * 60
    run.cluster.pods = {name: pod for name, pod in run.cluster.pods.items() if pod.role is not enums.Role.ROLLOUT}
    assert look() == first + 2 * 2 * 60
    run.clock.tick(60.0)
    assert look() == first + 2 * 2 * 60
    assert samples(metrics, "rljob_owner_info") == {"search": 1.0}
    metrics.forget(KEY)
    assert samples(metrics, "rljob_usage_gpu_seconds") == {}
