"""The GPUs that the pods of a job ask for in a cluster. Pure.

What was written is asked for as it is; the rules of `manifest.pod` have held it against the processes of a pod.
"""

from collections.abc import Mapping
from typing import Literal

from rljob_api import enums
from rljob_api.manifest.job import JobSpec
from rljob_api.manifest.pod import GPU, PodSpec

Device = Literal["auto", "cpu", "cuda"]


def num_gpus(spec: JobSpec, role: enums.Role) -> int:
    """Return how many GPUs the processes of one pod of a role use, on a job for GPUs."""
    return {
        enums.Role.ROLLOUT: spec.rollout.engine.num_gpus,
        enums.Role.TRAINER: spec.trainer.processes_per_node,
        enums.Role.JUDGE: 0 if spec.judge is None else spec.judge.num_gpus,
    }.get(role, 0)


def _pods(spec: JobSpec) -> Mapping[enums.Role, PodSpec]:
    """Return the pods whose processes use GPUs, on a job for GPUs."""
    pods = {enums.Role.ROLLOUT: spec.rollout.pod, enums.Role.TRAINER: spec.trainer.pod}
    return pods if spec.judge is None else {**pods, enums.Role.JUDGE: spec.judge.pod}


def derived_limits(spec: JobSpec, role: enums.Role, device: Device) -> Mapping[str, str]:
    """Return the GPUs that a role's pods ask for where the manifest asks for none: those that its processes use."""
    pods = _pods(spec)
    if device != "cuda" or role not in pods or pods[role].asks_for_gpus:
        return {}
    return {GPU: str(num_gpus(spec, role))}


def lines(spec: JobSpec) -> list[str]:
    """Return what the pods of a job for GPUs ask for, a line for each role; nothing for a job that is for none."""
    if spec.wanted_device != "cuda":
        return []
    why = {
        enums.Role.ROLLOUT: "rollout.engine.tensorParallelSize",
        enums.Role.TRAINER: "trainer.processesPerNode",
        enums.Role.JUDGE: "judge.tensorParallelSize",
    }
    counts = {enums.Role.ROLLOUT: spec.rollout.replicas, enums.Role.TRAINER: spec.trainer.nodes, enums.Role.JUDGE: 1}
    return [
        f"each of {counts[role]} {role} pods: {_asked(pod) or f'{GPU} {num_gpus(spec, role)}, from {why[role]}'}"
        for role, pod in _pods(spec).items()
    ]


def _asked(pod: PodSpec) -> str:
    claims = [f"claim {claim.name}" for claim in pod.resource_claims]
    return ", ".join([*(f"{name} {count}" for name, count in pod.gpus.items()), *claims])
