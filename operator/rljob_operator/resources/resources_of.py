"""Compute resources of a role's container."""

from rljob_api import names
from rljob_api.spec.base import num_bytes
from rljob_operator.resources.inputs import Inputs, Manifest, pod_of

# What a grading service needs beside its executions.
_VERIFIER_BYTES = 512 << 20
_VERIFIER_DISK = "2Gi"


# What a role asks for where its manifest says nothing: enough to begin, and so small that a job of every role fits a
# machine of two cores. A namespace with a quota of cpu or memory refuses pods that ask for nothing.
_REQUESTS = {
    names.Role.COORDINATOR: {"cpu": "100m", "memory": "256Mi"},
    names.Role.ROLLOUT: {"cpu": "250m", "memory": "1Gi"},
    names.Role.TRAINER: {"cpu": "250m", "memory": "1Gi"},
}


def as_written(inputs: Inputs, role: names.Role) -> Manifest:
    """Return the manifest's resources; of cpu and memory, where it names neither a request nor a limit, the role's own.

    A limit alone is the request too, as the API server has it: a default beside it could be above it.
    """
    given = pod_of(inputs, role).resources
    own = {key: value for key, value in _REQUESTS[role].items() if key not in given.limits}
    made = {"requests": {**own, **given.requests}, "limits": dict(given.limits)}
    return {key: value for key, value in made.items() if value}


def of_verifier(inputs: Inputs) -> Manifest:
    """Return requests equal to limits for cpu, memory and ephemeral-storage: no grading takes another pod's share.

    Memory without a word of the manifest's: every execution at its limit at once, and the service itself.
    """
    spec, config = inputs.job.spec.verifier, inputs.configs.verifiers[0]
    memory = _VERIFIER_BYTES + config.max_concurrent * num_bytes(spec.memory_bytes)
    written = {**spec.pod.resources.requests, **spec.pod.resources.limits}
    limits = {"cpu": "1", "memory": str(memory), "ephemeral-storage": _VERIFIER_DISK, **written}
    return {"requests": dict(limits), "limits": limits}
