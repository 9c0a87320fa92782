import dataclasses
from typing import Any, Protocol

import pytest

from rljob_api.manifest.rollout import AutoscalingSpec
from rljob_operator.resources import autoscaling
from rljob_operator.resources.inputs import Inputs

SERVED = frozenset({autoscaling.EXTERNAL_METRICS, autoscaling.KEDA})


class Example(Protocol):
    def make(self, **sections: object) -> Inputs: ...


def _given(example: Example, **scaling: object) -> Inputs:
    """The example with autoscaling between 1 and 8 replicas, and 3 of them."""
    given = example.make()
    wanted = AutoscalingSpec.model_validate({"maxReplicas": 8, **scaling})
    rollout = given.job.spec.rollout.model_copy(update={"autoscaling": wanted, "replicas": 3})
    spec = given.job.spec.model_copy(update={"rollout": rollout})
    return dataclasses.replace(given, job=given.job.model_copy(update={"spec": spec}))


def _made(example: Example, **scaling: object) -> dict[str, Any]:
    made = autoscaling.autoscaler(_given(example, **scaling), SERVED)
    assert made is not None
    return dict(made)


def test_the_job_itself_is_scaled_and_never_its_deployment(example: Example) -> None:
    for provider in ("HPA", "KEDA"):
        target = _made(example, provider=provider)["spec"]["scaleTargetRef"]
        assert target == {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "name": "sums"}


def test_an_hpa_reads_the_external_metric_of_its_own_job_against_a_value_of_one(example: Example) -> None:
    made = _made(example, minReplicas=2)
    assert (made["apiVersion"], made["kind"]) == ("autoscaling/v2", "HorizontalPodAutoscaler")
    assert (made["spec"]["minReplicas"], made["spec"]["maxReplicas"]) == (2, 8)
    (metric,) = made["spec"]["metrics"]
    assert metric["external"] == {
        "metric": {"name": "rljob_rollout_pressure_ratio", "selector": {"matchLabels": {"rljob": "sums"}}},
        "target": {"type": "Value", "value": "1"},
    }


@pytest.mark.parametrize("provider", ["HPA", "KEDA"])
def test_it_grows_by_all_or_two_pods_a_minute_and_shrinks_by_a_quarter_every_two(
    example: Example, provider: str
) -> None:
    spec = _made(example, provider=provider, scaleDownStabilizationSeconds=900)["spec"]
    behavior = spec["behavior"] if provider == "HPA" else spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    up, down = behavior["scaleUp"], behavior["scaleDown"]
    assert [(each["type"], each["value"], each["periodSeconds"]) for each in up["policies"]] == [
        ("Percent", 100, 60),
        ("Pods", 2, 60),
    ]
    assert (up["selectPolicy"], up["stabilizationWindowSeconds"]) == ("Max", 60)
    assert down["policies"] == [{"type": "Percent", "value": 25, "periodSeconds": 120}]
    assert down["stabilizationWindowSeconds"] == 900


def test_keda_asks_the_coordinator_so_that_no_prometheus_is_needed(example: Example) -> None:
    made = _made(example, provider="KEDA", minReplicas=2)
    assert (made["spec"]["minReplicaCount"], made["spec"]["maxReplicaCount"]) == (2, 8)
    (trigger,) = made["spec"]["triggers"]
    assert (trigger["type"], trigger["metricType"]) == ("metrics-api", "Value")
    assert trigger["metadata"] == {
        "url": "http://sums-coordinator.team.svc:8080/metrics",
        "format": "prometheus",
        "valueLocation": 'rljob_rollout_pressure_ratio{rljob="sums"}',
        "targetValue": "1",
    }


@pytest.mark.parametrize(
    ("provider", "served", "missing"),
    [
        ("HPA", {"keda.sh"}, "external.metrics.k8s.io"),
        ("KEDA", {"external.metrics.k8s.io"}, "keda.sh"),
        ("HPA", {"external.metrics.k8s.io"}, None),
        ("KEDA", {"keda.sh"}, None),
    ],
)
def test_without_its_api_there_is_no_object_and_the_api_is_named(
    example: Example, provider: str, served: set[str], missing: str | None
) -> None:
    given = _given(example, provider=provider)
    assert autoscaling.missing_api(given.job.spec, served) == missing
    assert (autoscaling.autoscaler(given, served) is None) is (missing is not None)


def test_a_job_without_autoscaling_has_no_scaler(example: Example) -> None:
    assert autoscaling.autoscaler(example.make(), SERVED) is None
    assert autoscaling.missing_api(example.make().job.spec, frozenset()) is None


@pytest.mark.parametrize(("bounds", "expected"), [((1, 8), 3), ((4, 8), 4), ((1, 2), 2)])
def test_replicas_outside_the_bounds_are_clamped(example: Example, bounds: tuple[int, int], expected: int) -> None:
    given = _given(example, minReplicas=bounds[0], maxReplicas=bounds[1])
    assert autoscaling.effective_replicas(given.job.spec) == expected
    assert autoscaling.effective_replicas(example.make().job.spec) == 1
