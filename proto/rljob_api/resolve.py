"""A manifest and a placement to one complete config per role. Pure; the only place where defaults become values.

Everything that can be wrong with a manifest as a whole is found here, all of it at once, before any process starts.
"""

from rljob_api import errors, rules
from rljob_api.explain import explain
from rljob_api.manifest.job import RLJob
from rljob_api.placement import (
    Placement,
    ProcessPlacement,
    TrainerPlacement,
    VerifierPlacement,
    local_placement,
    num_local_ports,
)
from rljob_api.resolution.coordinator import coordinator_config
from rljob_api.resolution.rollout import rollout_config
from rljob_api.resolution.trainer import trainer_config
from rljob_api.resolution.verifier import verifier_config
from rljob_api.resolved import ResolvedJob

__all__ = [
    "Placement",
    "ProcessPlacement",
    "ResolvedJob",
    "TrainerPlacement",
    "VerifierPlacement",
    "explain",
    "local_placement",
    "num_local_ports",
    "resolve",
    "warnings",
]


def resolve(job: RLJob, placement: Placement) -> ResolvedJob:
    """Return the configs of all processes.

    Raises ManifestError with every problem at once, each naming field, value and remedy.
    """
    problems = rules.problems(job.spec)
    if problems:
        raise errors.ManifestError(*problems)
    return ResolvedJob(
        coordinator=coordinator_config(job, placement),
        rollouts=tuple(rollout_config(job, placement, process) for process in placement.rollouts),
        verifiers=tuple(verifier_config(job, placement, verifier) for verifier in placement.verifiers),
        trainer=trainer_config(job, placement),
    )


def warnings(job: RLJob) -> list[str]:
    """Return a sentence for every legal but doubtful combination."""
    return rules.warnings(job.spec)
