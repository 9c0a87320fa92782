from collections.abc import Callable

from rljob_api import process_config, resolve
from rljob_api.cluster_placement import cluster_placement, gateway_url, rendezvous_host, tls_files
from rljob_api.manifest.job import RLJob

MakeJob = Callable[..., RLJob]


def in_cluster(job: RLJob, uid: str = "u-1") -> RLJob:
    metadata = job.metadata.model_copy(update={"namespace": "team", "uid": uid, "generation": 7})
    return job.model_copy(update={"metadata": metadata})


def test_roles_find_each_other_by_the_names_of_their_services(make_job: MakeJob) -> None:
    job = in_cluster(make_job({"rollout.replicas": 3, "verifier.replicas": 2}))
    configs = resolve.resolve(job, cluster_placement(job, verifier_cores=4))
    assert configs.trainer.coordinator_address == "job-coordinator.team.svc:50051"
    assert configs.trainer.store_address == "job-coordinator.team.svc:50052"
    assert configs.rollouts[0].verifier_addresses == ("job-verifier.team.svc:50053",)
    assert configs.coordinator.spec.rollout.replicas == 3
    assert configs.verifiers[0].num_slots == 4
    assert configs.coordinator.job.config_generation == 7


def test_replicas_share_one_config(make_job: MakeJob) -> None:
    job = in_cluster(make_job({"rollout.replicas": 3}))
    assert len(set(cluster_placement(job, verifier_cores=1).rollouts)) == 1


def test_rollouts_serve_weights_under_the_address_of_their_pod_and_prove_to_be_rollouts_of_the_job(
    make_job: MakeJob,
) -> None:
    job = in_cluster(make_job({"rollout.replicas": 3}))
    peers = resolve.resolve(job, cluster_placement(job, verifier_cores=1)).rollouts[2].peers
    assert peers is not None
    assert (peers.port, peers.address, peers.server_name) == (50054, "", "job-rollout.team.svc")
    assert peers.model_copy(update={"host": "10.1.2.3"}).address == "10.1.2.3:50054"
    assert peers.model_copy(update={"host": "fd00::1"}).address == "[fd00::1]:50054"


def test_a_trainer_announces_broadcasts_under_the_address_of_its_pod_and_proves_to_be_the_jobs(
    make_job: MakeJob,
) -> None:
    job = in_cluster(make_job({"weightSync.transport": "gloo"}))
    configs = resolve.resolve(job, cluster_placement(job, verifier_cores=1))
    assert configs.trainer.broadcasts is not None
    assert (configs.trainer.broadcasts.host, configs.trainer.broadcasts.port) == ("", 50055)
    assert configs.rollouts[0].trainer_name == "job-trainer.team.svc"
    # By the ordinary way rollouts serve one another as well.
    assert configs.rollouts[0].peers is not None


def test_files_that_all_mount_need_no_rollout_that_serves_them(make_job: MakeJob) -> None:
    job = in_cluster(make_job({"weightSync.transport": "file"}))
    assert resolve.resolve(job, cluster_placement(job, verifier_cores=1)).rollouts[0].peers is None


def test_rollouts_serve_agents_on_the_port_of_the_manifest(make_job: MakeJob) -> None:
    job = in_cluster(make_job({"workflow.type": "external", "rollout.gateway": {"port": 50_060}}))
    gateway = resolve.resolve(job, cluster_placement(job, verifier_cores=1)).rollouts[0].gateway
    assert gateway == process_config.GatewayConfig(bind_host="0.0.0.0", host="", port=50_060)


def test_where_a_job_has_certificates_rollouts_are_dialed_by_what_these_name(make_job: MakeJob) -> None:
    job = in_cluster(make_job({"workflow.type": "external", "rollout.gateway": {}}))
    placement = cluster_placement(job, verifier_cores=1, tls=tls_files("cluster.local"))
    gateway = resolve.resolve(job, placement).rollouts[0].gateway
    assert gateway is not None
    assert gateway_url(job, gateway) == "https://job-rollout.team.svc:50055"
    assert [gateway.in_pod(address).url for address in ("10.1.2.3", "fd00::7", "fd00::")] == [
        "https://10-1-2-3.job-rollout.team.svc:50055",
        "https://fd00--7.job-rollout.team.svc:50055",
        # CoreDNS's own name for it.
        "https://fd00--0.job-rollout.team.svc:50055",
    ]
    plain = gateway.model_copy(update={"service": ""})
    assert [plain.in_pod(address).url for address in ("10.1.2.3", "fd00::7")] == [
        "http://10.1.2.3:50055",
        "http://[fd00::7]:50055",
    ]


def test_rendezvous_of_another_attempt_is_another_host(make_job: MakeJob) -> None:
    job = in_cluster(make_job())
    assert rendezvous_host(job, 2) == "job-trainer-2-0.job-trainer.team.svc"
    placement = cluster_placement(job, verifier_cores=1, attempt=2)
    assert placement.trainer.rendezvous_host == rendezvous_host(job, 2)
    assert placement.trainer.attempt == 2


def test_two_jobs_on_one_claim_share_no_folder(make_job: MakeJob) -> None:
    one, other = (cluster_placement(in_cluster(make_job(), uid), verifier_cores=1) for uid in ("u-1", "u-2"))
    folders = [
        (place.state_dir, place.weights_dir, place.checkpoint_dir, place.export_dir, place.dump_dir)
        for place in (one, other)
    ]
    assert len({*folders[0], *folders[1]}) == 10
    roots = ("/var/lib/rljob-state/u-1", "/var/lib/rljob/u-1")
    assert [next(root for root in roots if folder.startswith(root)) for folder in folders[0]] == [
        *roots[:1] * 2,
        *roots[1:] * 3,
    ]


def test_weights_are_on_the_volume_that_all_mount_where_files_carry_them(make_job: MakeJob) -> None:
    job = in_cluster(make_job({"weightSync.transport": "file"}))
    placement = cluster_placement(job, verifier_cores=1)
    assert placement.weights_dir.startswith("/var/lib/rljob/")
    configs = resolve.resolve(job, placement)
    assert {configs.coordinator.weights_dir, configs.trainer.weights_dir, configs.rollouts[0].weights_dir} == {
        placement.weights_dir
    }
