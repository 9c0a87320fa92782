"""Compute resources of a role's container."""

from rljob_api.spec.base import num_bytes
from rljob_operator.resources.inputs import Inputs, Manifest

# What a grading service needs beside its executions.
_VERIFIER_BYTES = 512 << 20
_VERIFIER_DISK = "2Gi"


def as_written(requests: dict[str, str], limits: dict[str, str]) -> Manifest:
    """Return the manifest's resources without empty maps."""
    given = {"requests": dict(requests), "limits": dict(limits)}
    return {key: value for key, value in given.items() if value}


def of_verifier(inputs: Inputs) -> Manifest:
    """Return requests equal to limits for cpu, memory and ephemeral-storage: no grading takes another pod's share.

    Memory without a word of the manifest's: every execution at its limit at once, and the service itself.
    """
    spec, config = inputs.job.spec.verifier, inputs.configs.verifiers[0]
    memory = _VERIFIER_BYTES + config.max_concurrent * num_bytes(spec.memory_bytes)
    written = {**spec.pod.resources.requests, **spec.pod.resources.limits}
    limits = {"cpu": "1", "memory": str(memory), "ephemeral-storage": _VERIFIER_DISK, **written}
    return {"requests": dict(limits), "limits": limits}
