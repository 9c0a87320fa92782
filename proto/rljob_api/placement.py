"""Where the processes of a job run: addresses, ports, folders and processors. Everything that a manifest does not say.

A launcher makes one Placement (`local_placement` on one machine, the operator in a cluster) and `resolve` reads it;
roles cannot tell which launcher it was. All folders are absolute.
"""

import dataclasses
import posixpath
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from rljob_api import enums, process_config, suites
from rljob_api.manifest.job import RLJob

LOOPBACK = "127.0.0.1"
COORDINATOR_PORTS = 3  # control, store, health
TRAINER_PORTS = 2  # rendezvous, health; and one for announcements where it broadcasts weights
VERIFIER_PORTS = 2  # verify, health
JUDGE_PORTS = 2  # verify, health; and one for a model of its own
ENVIRONMENT_PORTS = 2  # places, health
ROLLOUT_PORTS = 1  # health; and one for weights where rollouts serve one another


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlacement:
    """One process: pod (or process) name, health port, scratch folder, threads (0: its own choice), processors."""

    pod: str
    health_port: int
    scratch_dir: str
    num_threads: int = 0
    cpu_affinity: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VerifierPlacement:
    """One verifier: where it listens, how rollouts reach it, and how many gradings it runs at once by default."""

    process: ProcessPlacement
    port: int
    address: str
    num_cores: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JudgePlacement:
    """The judge: where it listens, and how rollouts reach it. One process, whose cache all rollouts share.

    server_port: of the model that it serves itself, on loopback; 0 without one.
    """

    process: ProcessPlacement
    port: int
    address: str
    server_port: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentPlacement:
    """One environment: where it listens, and how rollouts reach it."""

    process: ProcessPlacement
    port: int
    address: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlacement:
    """One process of the agents, and the gateway that it asks for tasks."""

    process: ProcessPlacement
    gateway_url: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainerPlacement:
    """The trainer's first node: the rest is equal but for node_rank. `attempt` fences older ones.

    broadcasts: where it announces broadcasts of weights, None without. certified_name: that its certificate has.
    """

    process: ProcessPlacement
    rendezvous_host: str
    rendezvous_port: int
    attempt: int = 1
    broadcasts: process_config.BroadcastConfig | None = None
    certified_name: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One job's place. `base_dir` is what relative data and model paths are relative to: the manifest's folder.

    `control_address` and `store_address` are host:port as other processes dial them. `kv_cache_bytes` 0 leaves the
    size to the engine. `code_dir` is where the ConfigMap of spec.workflow.code is mounted; empty: its path is relative
    to base_dir. `runs_dir` holds the runs of other jobs by name; empty where they are not found that way.
    weights_dir: of the coordinator's weight store; the others see it with weightSync.transport file.
    peers: where each rollout serves weights to the others, in the order of `rollouts`; empty where none does.
    gateways: where each serves agents from outside, in the same order; empty where none come.
    judge: None where no reward asks one. environments: empty where no episode has a shell. agents: those that are
    processes here; empty in a cluster, where they are pods of an image without a config.
    `model_dir` is where the claim of spec.model.source is mounted; empty where there are no claims. `device`: what
    rollouts and trainer compute on; auto is what is found where they start. Raises ValueError if no rollout or verifier
    is placed.
    """

    uid: str
    namespace: str
    config_generation: int = 1
    base_dir: str
    bind_host: str
    health_host: str
    tls: process_config.TlsConfig | None = None
    coordinator: ProcessPlacement
    control_port: int
    control_address: str
    store_port: int
    store_address: str
    rollouts: tuple[ProcessPlacement, ...]
    peers: tuple[process_config.PeerConfig, ...] = ()
    gateways: tuple[process_config.GatewayConfig, ...] = ()
    verifiers: tuple[VerifierPlacement, ...]
    trainer: TrainerPlacement
    judge: JudgePlacement | None = None
    environments: tuple[EnvironmentPlacement, ...] = ()
    agents: tuple[AgentPlacement, ...] = ()
    state_dir: str
    weights_dir: str
    checkpoint_dir: str
    export_dir: str
    cache_dir: str
    dump_dir: str
    code_dir: str = ""
    runs_dir: str = ""
    model_dir: str = ""
    kv_cache_bytes: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def __post_init__(self) -> None:
        if not self.rollouts or not self.verifiers:
            raise ValueError(
                f"need at least one rollout and one verifier, got {len(self.rollouts)} and {len(self.verifiers)}"
            )


def num_local_ports(job: RLJob) -> int:
    """Return how many free ports `local_placement` needs for a job."""
    rollouts, verifiers = job.spec.rollout.replicas, job.spec.verifier.replicas
    others = (
        COORDINATOR_PORTS
        + TRAINER_PORTS
        + job.spec.trainer_broadcasts_weights
        + VERIFIER_PORTS * verifiers
        + _num_judge_ports(job)
        + ENVIRONMENT_PORTS * suites.num_environments(job.spec)
    )
    return others + (ROLLOUT_PORTS + job.spec.rollouts_serve_weights) * rollouts


def _num_judge_ports(job: RLJob) -> int:
    return JUDGE_PORTS * _is_judged(job) + (job.spec.judge is not None)


def _is_judged(job: RLJob) -> bool:
    return enums.Role.JUDGE in suites.roles(job.spec)


def _local_gateways(job: RLJob) -> tuple[process_config.GatewayConfig, ...]:
    gateway = job.spec.rollout.gateway
    if gateway is None:
        return ()
    return tuple(
        process_config.GatewayConfig(bind_host=LOOPBACK, host=LOOPBACK, port=gateway.port + index)
        for index in range(job.spec.rollout.replicas)
    )


class CoreShare(Protocol):
    """Processors that a process may use (empty: all) and the number of compute threads it starts."""

    @property
    def affinity(self) -> tuple[int, ...]: ...

    @property
    def num_threads(self) -> int: ...


def local_placement(
    job: RLJob,
    *,
    uid: str,
    run_dir: str,
    base_dir: str,
    cache_dir: str,
    ports: Sequence[int],
    num_cores: int,
    shares: Mapping[enums.Role, Sequence[CoreShare]] | None = None,
    attempt: int = 1,
    kv_cache_bytes: int = 0,
) -> Placement:
    """Return the placement of all roles on this machine, everything but the model cache below `run_dir`.

    ports: free ports of the loopback interface, at least num_local_ports(job). shares: processors of each process of a
    role, one per rollout and per trainer rank; a role that is not in it gets one thread and no fixed processor.
    num_cores: processors of the machine, for the number of gradings at once. Raises ValueError if ports are missing.
    """
    if len(ports) < num_local_ports(job):
        raise ValueError(f"need {num_local_ports(job)} ports, got {len(ports)}")
    control, store, health, rendezvous, trainer_health, *rest = ports
    verifiers, rollouts = job.spec.verifier.replicas, job.spec.rollout.replicas
    verifier_ports, rest = rest[: VERIFIER_PORTS * verifiers], rest[VERIFIER_PORTS * verifiers :]
    rollout_ports, rest = rest[:rollouts], rest[rollouts:]
    num_peers = rollouts * job.spec.rollouts_serve_weights
    peer_ports, rest = rest[:num_peers], rest[num_peers:]
    num_judge_ports = _num_judge_ports(job)
    judge_ports, rest = rest[:num_judge_ports], rest[num_judge_ports:]
    num_environment_ports = ENVIRONMENT_PORTS * suites.num_environments(job.spec)
    environment_ports, broadcast_ports = rest[:num_environment_ports], rest[num_environment_ports:]
    machine = _Machine(run_dir=run_dir, shares=shares or {})
    return Placement(
        uid=uid,
        namespace=job.metadata.namespace,
        base_dir=base_dir,
        bind_host=LOOPBACK,
        health_host=LOOPBACK,
        coordinator=machine.process(enums.Role.COORDINATOR, health_port=health),
        control_port=control,
        control_address=f"{LOOPBACK}:{control}",
        store_port=store,
        store_address=f"{LOOPBACK}:{store}",
        rollouts=tuple(
            machine.process(enums.Role.ROLLOUT, index, health_port=port) for index, port in enumerate(rollout_ports)
        ),
        peers=tuple(process_config.PeerConfig(bind_host=LOOPBACK, host=LOOPBACK, port=port) for port in peer_ports),
        gateways=_local_gateways(job),
        verifiers=tuple(
            VerifierPlacement(
                process=machine.process(enums.Role.VERIFIER, index, health_port=verifier_ports[2 * index + 1]),
                port=verifier_ports[2 * index],
                address=f"{LOOPBACK}:{verifier_ports[2 * index]}",
                num_cores=num_cores,
            )
            for index in range(verifiers)
        ),
        trainer=TrainerPlacement(
            process=machine.process(enums.Role.TRAINER, health_port=trainer_health),
            rendezvous_host=LOOPBACK,
            rendezvous_port=rendezvous,
            attempt=attempt,
            broadcasts=_local_broadcasts(job, broadcast_ports),
        ),
        judge=_local_judge(machine, judge_ports) if _is_judged(job) else None,
        environments=_local_environments(machine, environment_ports),
        agents=_local_agents(job, machine),
        state_dir=posixpath.join(run_dir, "state"),
        weights_dir=posixpath.join(run_dir, "state", "weights"),
        checkpoint_dir=posixpath.join(run_dir, "checkpoints"),
        export_dir=posixpath.join(run_dir, "export"),
        cache_dir=cache_dir,
        dump_dir=posixpath.join(run_dir, "dumps"),
        runs_dir=posixpath.dirname(run_dir),
        kv_cache_bytes=kv_cache_bytes,
        device=job.spec.wanted_device or "auto",
    )


def _local_agents(job: RLJob, machine: "_Machine") -> tuple[AgentPlacement, ...]:
    """Return a process for each replica; they take the rollouts in turn. None without a gateway, which is refused."""
    gateways = _local_gateways(job)
    if job.spec.agents is None or not gateways:
        return ()
    return tuple(
        AgentPlacement(
            process=machine.process(enums.Role.AGENTS, index, health_port=0),
            gateway_url=gateways[index % len(gateways)].url,
        )
        for index in range(job.spec.agents.replicas)
    )


def _local_broadcasts(job: RLJob, ports: Sequence[int]) -> process_config.BroadcastConfig | None:
    if not job.spec.trainer_broadcasts_weights:
        return None
    return process_config.BroadcastConfig(host=LOOPBACK, port=ports[0])


def _local_judge(machine: "_Machine", ports: Sequence[int]) -> JudgePlacement:
    port, health_port, *of_model = ports
    process = machine.process(enums.Role.JUDGE, health_port=health_port)
    server_port = of_model[0] if of_model else 0
    return JudgePlacement(process=process, port=port, address=f"{LOOPBACK}:{port}", server_port=server_port)


def _local_environments(machine: "_Machine", ports: Sequence[int]) -> tuple[EnvironmentPlacement, ...]:
    pairs = zip(ports[::ENVIRONMENT_PORTS], ports[1::ENVIRONMENT_PORTS], strict=True)
    return tuple(
        EnvironmentPlacement(
            process=machine.process(enums.Role.ENVIRONMENT, index, health_port=health_port),
            port=port,
            address=f"{LOOPBACK}:{port}",
        )
        for index, (port, health_port) in enumerate(pairs)
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    run_dir: str
    shares: Mapping[enums.Role, Sequence[CoreShare]]

    def process(self, role: enums.Role, index: int = 0, *, health_port: int) -> ProcessPlacement:
        own = self.shares.get(role, ())
        # All ranks of a trainer node are children of one process and share what is planned for them.
        parts = own if role is enums.Role.TRAINER else own[index : index + 1]
        pod = f"{role}-{index}"
        return ProcessPlacement(
            pod=pod,
            health_port=health_port,
            scratch_dir=posixpath.join(self.run_dir, "scratch", pod),
            num_threads=parts[0].num_threads if parts else 1,
            cpu_affinity=tuple(sorted({core for part in parts for core in part.affinity})),
        )
