"""What a job computes on, and the GPUs that its pods ask for."""

from collections.abc import Callable, Mapping

import pytest

from rljob_api import devices, enums, resolve
from rljob_api.cluster_placement import cluster_placement
from rljob_api.manifest.job import RLJob
from rljob_api.placement import local_placement, num_local_ports

MakeJob = Callable[..., RLJob]
ROLLOUT, TRAINER = enums.Role.ROLLOUT, enums.Role.TRAINER
LIMITS = "rollout.pod.resources.limits"
CLAIM = [{"name": "gpu", "resourceClaimTemplateName": "h100"}]


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, None),
        ({"device": "cpu"}, "cpu"),
        ({"device": "cuda"}, "cuda"),
        ({LIMITS: {"nvidia.com/gpu": "1"}}, "cuda"),
        ({"trainer.pod.resources.limits": {"nvidia.com/mig-3g.40gb": "1"}}, "cuda"),
        ({LIMITS: {"nvidia.com/gpu.shared": "1"}}, "cuda"),
        ({"trainer.pod.resourceClaims": CLAIM}, "cuda"),
        ({LIMITS: {"nvidia.com/gpu": "0", "rdma/hca": "1", "memory": "1Gi"}}, None),
    ],
)
def test_a_job_is_for_gpus_where_it_says_so_or_asks_for_them(
    changes: Mapping[str, object], wanted: str | None, make_job: MakeJob
) -> None:
    assert make_job(changes).spec.wanted_device == wanted


@pytest.mark.parametrize("image", ["cpu", "cuda"])
@pytest.mark.parametrize("written", [None, "cpu", "cuda"])
def test_in_a_cluster_the_manifest_decides_and_else_the_image(
    image: str, written: str | None, make_job: MakeJob
) -> None:
    job = make_job({"device": written} if written else {})
    configs = resolve.resolve(job, cluster_placement(job, verifier_cores=1, image_device=image))
    assert {configs.trainer.device, *(config.device for config in configs.rollouts)} == {written or image}


@pytest.mark.parametrize(("written", "device"), [(None, "auto"), ("cpu", "cpu"), ("cuda", "cuda")])
def test_on_one_machine_the_manifest_decides_and_else_what_is_found(
    written: str | None, device: str, make_job: MakeJob
) -> None:
    job = make_job({"device": written} if written else {})
    ports = range(1000, 1000 + num_local_ports(job))
    placement = local_placement(
        job, uid="u", run_dir="/run", base_dir="/", cache_dir="/cache", ports=ports, num_cores=2
    )
    configs = resolve.resolve(job, placement)
    assert {configs.trainer.device, *(config.device for config in configs.rollouts)} == {device}


def test_gpus_follow_from_the_processes_of_a_pod(make_job: MakeJob) -> None:
    spec = make_job({"rollout.engine.tensorParallelSize": 4, "trainer.processesPerNode": 2, "trainer.nodes": 2}).spec
    assert devices.derived_limits(spec, ROLLOUT, "cuda") == {"nvidia.com/gpu": "4"}
    assert devices.derived_limits(spec, TRAINER, "cuda") == {"nvidia.com/gpu": "2"}
    for role in (enums.Role.COORDINATOR, enums.Role.VERIFIER):
        assert devices.derived_limits(spec, role, "cuda") == {}


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_a_job_that_is_not_for_gpus_asks_for_none(device: devices.Device, make_job: MakeJob) -> None:
    assert devices.derived_limits(make_job().spec, ROLLOUT, device) == {}


@pytest.mark.parametrize(
    "written",
    [
        {LIMITS: {"nvidia.com/gpu": "8"}},
        {LIMITS: {"nvidia.com/mig-3g.40gb": "1"}},
        {"rollout.pod.resourceClaims": CLAIM},
    ],
)
def test_what_was_written_takes_the_place_of_what_follows(written: Mapping[str, object], make_job: MakeJob) -> None:
    spec = make_job(written).spec
    assert devices.derived_limits(spec, ROLLOUT, "cuda") == {}
    # The other role's follow still: a job for GPUs trains on them too.
    assert devices.derived_limits(spec, TRAINER, "cuda") == {"nvidia.com/gpu": "1"}


def test_a_plan_tells_of_written_claimed_and_derived_gpus(make_job: MakeJob) -> None:
    assert devices.lines(make_job().spec) == []
    spec = make_job({LIMITS: {"nvidia.com/gpu": "1"}, "rollout.replicas": 3, "trainer.processesPerNode": 2}).spec
    assert devices.lines(spec) == [
        "each of 3 rollout pods: nvidia.com/gpu 1",
        "each of 1 trainer pods: nvidia.com/gpu 2, from trainer.processesPerNode",
    ]
    claimed = make_job({"trainer.pod.resourceClaims": CLAIM}).spec
    assert devices.lines(claimed)[1] == "each of 1 trainer pods: claim gpu"
