"""Where the processes of a job run in a cluster: Services as addresses, one port each, volumes as folders.

All replicas of a role share one config. What differs between them comes from RLJOB_* variables of their pods: a config
volume lags behind its ConfigMap, so neither pod name nor trainer attempt may come from there.
"""

import posixpath
from typing import Literal

from rljob_api import enums, process_config, suites
from rljob_api.manifest.job import RLJob
from rljob_api.placement import (
    EnvironmentPlacement,
    JudgePlacement,
    Placement,
    ProcessPlacement,
    TrainerPlacement,
    VerifierPlacement,
)

CONTROL_PORT, STORE_PORT, VERIFY_PORT, PEER_PORT, BROADCAST_PORT = 50051, 50052, 50053, 50054, 50055
PLACES_PORT = 50056
# On loopback of the judge's pod.
MODEL_PORT = 8000
HEALTH_PORT = 8080
RENDEZVOUS_PORT = 29500
ANY_ADDRESS = "0.0.0.0"

# Mount points. The coordinator alone mounts the volume of STATE_DIR; that of STORAGE_DIR is mounted where checkpoints,
# exports and dumps are written.
CONFIG_DIR, CACHE_DIR, SCRATCH_DIR = "/etc/rljob", "/var/cache/rljob", "/tmp/rljob"
STATE_DIR, STORAGE_DIR = "/var/lib/rljob-state", "/var/lib/rljob"
# Beside CONFIG_DIR and not below it: a mount inside a read-only mount cannot be made.
TLS_DIR = "/etc/rljob-tls"
# The CAs that are trusted, there and in the Secrets.
CA_FILE = "ca.crt"
# The ConfigMap of spec.workflow.code.
CODE_DIR = "/etc/rljob-code"
# The claim of spec.model.source.
MODEL_DIR = "/var/lib/rljob-model"
# What relative data and model paths of a manifest are relative to; the user mounts it.
DATA_DIR = "/data"


def state_folder(uid: str) -> str:
    """Return where the coordinator of the job of that uid has its ledger and history."""
    return posixpath.join(STATE_DIR, uid)


def tls_files(trust_domain: str) -> process_config.TlsConfig:
    """Return where a pod finds its certificate: under the keys of its role's Secret."""
    return process_config.TlsConfig(
        ca_file=posixpath.join(TLS_DIR, CA_FILE),
        cert_file=posixpath.join(TLS_DIR, "tls.crt"),
        key_file=posixpath.join(TLS_DIR, "tls.key"),
        trust_domain=trust_domain,
    )


def service_host(job: RLJob, role: enums.Role) -> str:
    """Return the DNS name of a role's Service, resolved by the search list of any pod of the cluster."""
    return f"{job.metadata.name}-{role}.{job.metadata.namespace}.svc"


def gateway_url(job: RLJob, gateway: process_config.GatewayConfig) -> str:
    """Return where agents ask for tasks in a cluster: the Service of the rollouts, each of which has its own."""
    return gateway.url_of(service_host(job, enums.Role.ROLLOUT), gateway.port)


def rendezvous_host(job: RLJob, attempt: int | str) -> str:
    """Return the DNS name of the first pod of a trainer attempt, a number or what becomes one in the pod: another
    attempt never answers it.
    """
    return f"{job.metadata.name}-{enums.Role.TRAINER}-{attempt}-0.{service_host(job, enums.Role.TRAINER)}"


def cluster_placement(
    job: RLJob,
    *,
    verifier_cores: int,
    attempt: int = 1,
    tls: process_config.TlsConfig | None = None,
    image_device: Literal["cpu", "cuda"] = "cpu",
) -> Placement:
    """Return the placement of a job's pods.

    verifier_cores: processors of a verifier pod, for the number of gradings at once. `attempt` is the trainer's; pods
    of later attempts are told by their environment. image_device: what the worker image here is for, where the
    manifest says nothing of it. A claim may serve many jobs, so folders hold the job's uid.
    """
    state, storage = state_folder(job.metadata.uid), posixpath.join(STORAGE_DIR, job.metadata.uid)
    files_carry_weights = job.spec.weight_sync.transport == "file"
    coordinator = service_host(job, enums.Role.COORDINATOR)
    return Placement(
        uid=job.metadata.uid,
        namespace=job.metadata.namespace,
        config_generation=job.metadata.generation,
        base_dir=DATA_DIR,
        bind_host=ANY_ADDRESS,
        health_host=ANY_ADDRESS,
        tls=tls,
        coordinator=_process(enums.Role.COORDINATOR),
        control_port=CONTROL_PORT,
        control_address=f"{coordinator}:{CONTROL_PORT}",
        store_port=STORE_PORT,
        store_address=f"{coordinator}:{STORE_PORT}",
        rollouts=(_process(enums.Role.ROLLOUT),) * job.spec.rollout.replicas,
        peers=() if files_carry_weights else (_peer(job),) * job.spec.rollout.replicas,
        gateways=_gateways(job, encrypted=tls is not None),
        verifiers=(_verifier(job, verifier_cores),),
        trainer=TrainerPlacement(
            process=_process(enums.Role.TRAINER),
            rendezvous_host=rendezvous_host(job, attempt),
            rendezvous_port=RENDEZVOUS_PORT,
            attempt=attempt,
            broadcasts=_broadcasts(job),
            certified_name=service_host(job, enums.Role.TRAINER),
        ),
        judge=_judge(job) if enums.Role.JUDGE in suites.roles(job.spec) else None,
        environments=() if job.spec.environment is None else (_environment(job),),
        state_dir=state,
        weights_dir=posixpath.join(storage if files_carry_weights else state, "weights"),
        checkpoint_dir=posixpath.join(storage, "checkpoints"),
        export_dir=posixpath.join(storage, "export"),
        cache_dir=CACHE_DIR,
        dump_dir=posixpath.join(storage, "dumps"),
        code_dir=CODE_DIR,
        model_dir=MODEL_DIR,
        device=job.spec.wanted_device or image_device,
    )


def _process(role: enums.Role) -> ProcessPlacement:
    return ProcessPlacement(pod=str(role), health_port=HEALTH_PORT, scratch_dir=SCRATCH_DIR)


def _peer(job: RLJob) -> process_config.PeerConfig:
    """Return where a rollout serves weights: one is dialed by its pod's address, which no certificate has, and proves
    by the name of the Service of rollouts that it is one of this job's.
    """
    name = service_host(job, enums.Role.ROLLOUT)
    return process_config.PeerConfig(bind_host=ANY_ADDRESS, host="", port=PEER_PORT, server_name=name)


def _broadcasts(job: RLJob) -> process_config.BroadcastConfig | None:
    if not job.spec.trainer_broadcasts_weights:
        return None
    return process_config.BroadcastConfig(host="", port=BROADCAST_PORT)


def _gateways(job: RLJob, *, encrypted: bool) -> tuple[process_config.GatewayConfig, ...]:
    gateway = job.spec.rollout.gateway
    if gateway is None:
        return ()
    service = service_host(job, enums.Role.ROLLOUT) if encrypted else ""
    shared = process_config.GatewayConfig(bind_host=ANY_ADDRESS, host="", port=gateway.port, service=service)
    return (shared,) * job.spec.rollout.replicas


def _verifier(job: RLJob, num_cores: int) -> VerifierPlacement:
    """Return the verifiers behind their Service: one address, whatever the number of replicas."""
    host = service_host(job, enums.Role.VERIFIER)
    process = _process(enums.Role.VERIFIER)
    return VerifierPlacement(process=process, port=VERIFY_PORT, address=f"{host}:{VERIFY_PORT}", num_cores=num_cores)


def _judge(job: RLJob) -> JudgePlacement:
    address = f"{service_host(job, enums.Role.JUDGE)}:{VERIFY_PORT}"
    server_port = 0 if job.spec.judge is None else MODEL_PORT
    return JudgePlacement(
        process=_process(enums.Role.JUDGE), port=VERIFY_PORT, address=address, server_port=server_port
    )


def _environment(job: RLJob) -> EnvironmentPlacement:
    """Return the environments behind their Service, whose pods a rollout dials one by one: a place is of one pod."""
    address = f"{service_host(job, enums.Role.ENVIRONMENT)}:{PLACES_PORT}"
    return EnvironmentPlacement(process=_process(enums.Role.ENVIRONMENT), port=PLACES_PORT, address=address)
