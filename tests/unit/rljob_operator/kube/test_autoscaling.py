"""Autoscalers over a job's life: made, watched, paused, taken away. The objects themselves have tests of their own."""

import asyncio
import json
from typing import Any, cast

import pytest

from rljob_api import enums
from rljob_api.conditions import ConditionType as Type
from rljob_api.manifest.job import RLJob
from rljob_operator.kube import kinds, projection
from rljob_operator.kube.client import ApiError, Client
from rljob_operator.kube.discovery import discover
from rljob_operator.model import Child, Observed, Ref, ref_of
from rljob_operator.reconcile import conditions, desired
from rljob_operator.settings import GangScheduler, Integrations, JobSettings
from rljob_testing.cluster import manifests
from rljob_testing.fake_client import FakeClient

IMAGES = dict.fromkeys(enums.STANDARD_ROLES, "example/rljob:1")
METRICS, KEDA, MONITORING = "external.metrics.k8s.io", "keda.sh", "monitoring.coreos.com"


# A fixed number of replicas.
FIXED: dict[str, object] = {"rollout.replicas": 3}


def _seen(*children: Child, **changes: object) -> Observed:
    scaling = {"rollout.autoscaling": {"minReplicas": 2, "maxReplicas": 6}}
    job = manifests.job("run", {} if changes == FIXED else {**scaling, **changes})
    job["metadata"] = {"name": "run", "namespace": "team", "uid": "u-1"}
    return Observed(job=RLJob.model_validate_json(json.dumps(job)), children={child.ref: child for child in children})


def _wanted(seen: Observed, *served: str) -> list[Any]:
    found = desired.desired_objects(seen, JobSettings(images=IMAGES), frozenset(served))
    assert found.problems == ()
    return [*found.first, *found.workloads(1)]


def _kinds(made: list[Any]) -> set[str]:
    return {ref_of(one).kind for one in made}


def test_an_autoscaler_is_wanted_where_its_api_is_served() -> None:
    assert "HorizontalPodAutoscaler" in _kinds(_wanted(_seen(), METRICS))
    assert "ScaledObject" in _kinds(_wanted(_seen(**{"rollout.autoscaling.provider": "KEDA"}), KEDA))
    assert not {"HorizontalPodAutoscaler", "ScaledObject"} & _kinds(_wanted(_seen(), KEDA))


def test_rollouts_are_within_the_bounds_whatever_the_manifest_says() -> None:
    def replicas(made: list[Any]) -> int:
        (rollout,) = (one for one in made if ref_of(one) == Ref("Deployment", "run-rollout"))
        return int(rollout["spec"]["replicas"])

    assert replicas(_wanted(_seen(**{"rollout.replicas": 1}), METRICS)) == 2
    assert replicas(_wanted(_seen(**{"rollout.replicas": 9}), METRICS)) == 6


def test_a_pod_monitor_is_wanted_where_it_is_served_unless_the_manifest_says_no() -> None:
    assert "PodMonitor" in _kinds(_wanted(_seen(), MONITORING))
    assert "PodMonitor" not in _kinds(_wanted(_seen()))
    assert "PodMonitor" not in _kinds(_wanted(_seen(**{"observability.podMonitor": False}), MONITORING))
    asked = _seen(**{"observability.podMonitor": True})
    (problem,) = desired.desired_objects(asked, JobSettings(images=IMAGES)).problems
    assert problem.startswith("spec.observability.podMonitor = true, but monitoring.coreos.com is not served")


def _active(seen: Observed, course: conditions.RunOutcome | None = None) -> tuple[str, str, str] | None:
    found = conditions.conditions(seen, course or conditions.RunOutcome(), now=0.0)
    one = next((one for one in found if one.type == Type.AUTOSCALING_ACTIVE), None)
    return None if one is None else (one.status, one.reason, one.message)


def _scaler(blind: str = "") -> Child:
    return Child(ref=Ref("HorizontalPodAutoscaler", "run-rollout"), uid="h", manifest={}, blind=blind)


def test_the_condition_says_whether_something_scales_and_reads_its_metric() -> None:
    assert _active(_seen(_scaler())) == ("True", "ScalingActive", "")
    assert _active(_seen(_scaler("no metrics returned"))) == ("False", "MetricsUnavailable", "no metrics returned")
    missing = ("False", "ProviderMissing", f"nothing scales the rollouts: provider HPA needs the API {METRICS}")
    assert _active(_seen()) == missing
    assert _active(_seen(), conditions.RunOutcome(suspended="UserRequested")) == ("False", "Paused", "")
    assert _active(_seen(**FIXED)) is None


@pytest.mark.parametrize(
    ("kind", "condition", "expected"),
    [
        ("HorizontalPodAutoscaler", {"type": "ScalingActive", "status": "False", "message": "no data"}, "no data"),
        ("HorizontalPodAutoscaler", {"type": "ScalingActive", "status": "True"}, ""),
        ("HorizontalPodAutoscaler", {"type": "AbleToScale", "status": "False", "message": "later"}, ""),
        ("ScaledObject", {"type": "Ready", "status": "False", "reason": "TriggerError"}, "TriggerError"),
        ("Deployment", {"type": "Ready", "status": "False", "message": "other"}, ""),
    ],
)
def test_what_an_autoscaler_says_of_itself_is_kept(kind: str, condition: dict[str, str], expected: str) -> None:
    raw = {"kind": kind, "metadata": {"name": "run-rollout", "uid": "h"}, "status": {"conditions": [condition]}}
    assert projection.project_child(raw).child().blind == expected


_VERSIONS = {
    KEDA: "v1alpha1",
    METRICS: "v1beta1",
    MONITORING: "v1",
    "kueue.x-k8s.io": "v1beta2",
    "scheduling.k8s.io": "v1",
}


class Api(FakeClient):
    """Serves API groups, each in the version that is used, Kubernetes' own scheduling in its stable one."""

    def __init__(self, *groups: str) -> None:
        super().__init__()
        self._groups = frozenset((*groups, *(f"{group}/{_VERSIONS[group]}" for group in groups)))

    async def groups(self) -> frozenset[str]:
        return self._groups


def _discovered(api: Api, *, gang: GangScheduler = "none", **integrations: object) -> Any:
    allowed = Integrations.model_validate(integrations)
    return asyncio.run(discover(cast(Client, api), allowed, namespaces=(None,), gang=gang))


def test_an_optional_api_is_used_where_it_is_served_and_allowed() -> None:
    found = _discovered(Api(KEDA, METRICS))
    assert found.optional == (kinds.SCALED_OBJECT,)
    assert found.groups >= {KEDA, METRICS}
    assert _discovered(Api(KEDA, MONITORING), keda="false").optional == (kinds.POD_MONITOR,)
    assert KEDA not in _discovered(Api(KEDA), keda="false").groups
    assert _discovered(Api()).optional == ()
    assert _discovered(Api("kueue.x-k8s.io")).optional == (kinds.QUEUED,)
    assert _discovered(Api("kueue.x-k8s.io"), kueue="false").optional == ()


def test_groups_of_pods_are_those_of_the_gang_scheduler_that_is_chosen_in_the_version_that_it_has() -> None:
    assert _discovered(Api("scheduling.k8s.io"), gang="native").optional == (), "its alpha version is off"
    api = Api("scheduling.k8s.io")
    api._groups |= {"scheduling.k8s.io/v1alpha2"}
    assert _discovered(api, gang="native").optional == (kinds.POD_GROUPS["native"],)
    assert _discovered(api).optional == ()


def test_an_api_that_our_rights_do_not_cover_is_left_alone_and_one_that_fails_is_asked_again() -> None:
    api = Api(KEDA)
    api.fail["list ScaledObject"] = 403
    assert _discovered(api).optional == ()
    api.fail["list ScaledObject"] = 503
    with pytest.raises(ApiError):
        _discovered(api)
