"""The GPUs that the pods of a job ask for in a cluster. Pure.

What was written is asked for as it is; the rules of `manifest.pod` have held it against the processes of a pod.
"""

from collections.abc import Mapping
from typing import Literal

from rljob_api import names
from rljob_api.manifest.job import JobSpec
from rljob_api.manifest.pod import GPU, PodSpec

Device = Literal["auto", "cpu", "cuda"]


def num_gpus(spec: JobSpec, role: names.Role) -> int:
    """Return how many GPUs the processes of one pod of a role use, on a job for GPUs."""
    used = {names.Role.ROLLOUT: spec.rollout.engine.num_gpus, names.Role.TRAINER: spec.trainer.processes_per_node}
    return used.get(role, 0)


def derived_limits(spec: JobSpec, role: names.Role, device: Device) -> Mapping[str, str]:
    """Return the GPUs that a role's pods ask for where the manifest asks for none: those that its processes use."""
    pods: Mapping[names.Role, PodSpec] = {names.Role.ROLLOUT: spec.rollout.pod, names.Role.TRAINER: spec.trainer.pod}
    if device != "cuda" or role not in pods or pods[role].asks_for_gpus:
        return {}
    return {GPU: str(num_gpus(spec, role))}


def lines(spec: JobSpec) -> list[str]:
    """Return what the pods of a job for GPUs ask for, a line for each role; nothing for a job that is for none."""
    if spec.wanted_device != "cuda":
        return []
    pods = {names.Role.ROLLOUT: spec.rollout.pod, names.Role.TRAINER: spec.trainer.pod}
    why = {names.Role.ROLLOUT: "rollout.engine.tensorParallelSize", names.Role.TRAINER: "trainer.processesPerNode"}
    counts = {names.Role.ROLLOUT: spec.rollout.replicas, names.Role.TRAINER: spec.trainer.nodes}
    return [
        f"each of {counts[role]} {role} pods: {_asked(pods[role]) or f'{GPU} {num_gpus(spec, role)}, from {why[role]}'}"
        for role in pods
    ]


def _asked(pod: PodSpec) -> str:
    claims = [f"claim {claim.name}" for claim in pod.resource_claims]
    return ", ".join([*(f"{name} {count}" for name, count in pod.gpus.items()), *claims])
