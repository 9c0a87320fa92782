"""The manifests for GPUs on a real API server, which has none: the job and what is made of it, for trial."""

import json
from typing import Any

import pytest
import yaml

from rljob_api import enums
from rljob_api.manifest.job import RLJob
from rljob_operator.model import Manifest, Observed
from rljob_operator.reconcile.desired import desired_objects
from rljob_operator.settings import JobSettings
from rljob_testing import examples
from rljob_testing.cluster.manifests import Api

IMAGES = {role: f"example.com/{role}:1" for role in enums.STANDARD_ROLES}
CUDA, CPU = (JobSettings(images=IMAGES, device=device) for device in ("cuda", "cpu"))
MANIFESTS = {
    path.stem: path for path in sorted(examples.EXAMPLES.glob("*.yaml")) if "nvidia.com/gpu" in path.read_text()
}
# GPUs of a rollout pod and of a trainer pod.
GPUS = {
    "areal-math-code": (1, 2),
    "areal-multi-turn-math": (1, 4),
    "arealite-clevr-count": (1, 7),
    "arealite-gsm8k": (1, 4),
    "dapo": (8, 8),
    "grpo-classic": (1, 4),
    "oat-drgrpo-zero": (1, 4),
}


def stored(api: Api, document: dict[str, Any]) -> RLJob:
    """Return a job as the API server would store it, with its defaults."""
    answer = api.try_create(document)
    assert answer.accepted, answer.error
    return RLJob.model_validate_json(json.dumps(answer.body))


def pod_makers(api: Api, job: RLJob) -> dict[str, Any]:
    """Return the pod specs of rollouts and trainer as the API server would store them, by kind of their workload."""
    found = desired_objects(Observed(job=job), CUDA)
    assert found.problems == ()
    made: dict[str, Any] = {}
    for manifest in (*found.first, *found.workloads(1)):
        answer = api.try_create(ownerless(manifest))
        assert answer.accepted, f"{manifest['kind']}: {answer.error}"
        if any(role in str(manifest["metadata"]["name"]) for role in ("-rollout", "-trainer-1")):  # type: ignore[index]
            made[str(manifest["kind"])] = answer.body
    return {kind: made[kind]["spec"]["template"]["spec"] for kind in ("Deployment", "Job")}


def ownerless(manifest: Manifest) -> Any:
    # Nothing is stored, so there is no owner to point to; claims that outlive their job have none.
    document = json.loads(json.dumps(manifest))
    document["metadata"].pop("ownerReferences", None)
    return document


def limits(pod: dict[str, Any]) -> dict[str, str]:
    (container,) = pod["containers"]
    return dict(container["resources"].get("limits", {}))


def test_every_manifest_for_gpus_is_in_the_table() -> None:
    assert set(MANIFESTS) == set(GPUS)


@pytest.mark.parametrize("name", GPUS)
def test_a_manifest_for_gpus_is_taken_with_all_that_is_made_of_it(name: str, api: Api) -> None:
    job = stored(api, yaml.safe_load(MANIFESTS[name].read_text()))
    pods = pod_makers(api, job)
    asked = tuple(int(limits(pods[kind])["nvidia.com/gpu"]) for kind in ("Deployment", "Job"))
    assert asked == GPUS[name]


@pytest.mark.parametrize("name", GPUS)
def test_without_its_requests_the_same_gpus_follow_from_its_processes(name: str, api: Api) -> None:
    document = yaml.safe_load(MANIFESTS[name].read_text())
    for role in ("rollout", "trainer"):
        del document["spec"][role]["pod"]["resources"]
    pods = pod_makers(api, stored(api, document))
    assert tuple(int(limits(pods[kind])["nvidia.com/gpu"]) for kind in ("Deployment", "Job")) == GPUS[name]


@pytest.mark.parametrize("name", GPUS)
def test_an_installation_for_processors_refuses_it_with_the_remedy(name: str, api: Api) -> None:
    job = stored(api, yaml.safe_load(MANIFESTS[name].read_text()))
    (problem,) = desired_objects(Observed(job=job), CPU).problems
    assert "the worker image of this installation is for CPUs" in problem
    assert "jobs.device cuda" in problem


def test_what_a_platform_may_allow_beside_gpus_is_taken_too(api: Api) -> None:
    document = yaml.safe_load(MANIFESTS["arealite-gsm8k"].read_text())
    spec = document["spec"]
    spec["trainer"]["pod"] = {
        "resources": {"limits": {"rdma/hca": "1"}},
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "four-h100"}],
        "env": [{"name": "NCCL_IB_HCA", "value": "mlx5"}],
    }
    spec["rollout"]["pod"]["resources"]["limits"] = {"nvidia.com/mig-3g.40gb": "1"}
    pods = pod_makers(api, stored(api, document))
    assert limits(pods["Deployment"]) == {"nvidia.com/mig-3g.40gb": "1"}
    assert limits(pods["Job"]) == {"rdma/hca": "1"}
    assert pods["Job"]["resourceClaims"] == [{"name": "gpus", "resourceClaimTemplateName": "four-h100"}]
    (trainer,) = pods["Job"]["containers"]
    assert trainer["resources"]["claims"] == [{"name": "gpus"}]
    assert {"name": "NCCL_IB_HCA", "value": "mlx5"} in trainer["env"]
