"""Disruption budgets of rollouts and trainers."""

from rljob_api import names
from rljob_operator.resources.inputs import Inputs, Manifest, child_name, labels, metadata, selector

ALLOW = "rljob.dev/allow-disruption"


def budgets(inputs: Inputs, *, running: bool) -> list[Manifest]:
    """Return the budgets that should exist now: none for a role of one pod, none where the job allows disruption.

    A trainer's exists while the job runs only. `minAvailable` as a number: Jobs have no scale subresource.
    """
    spec = inputs.job.spec
    if inputs.job.metadata.annotations.get(ALLOW) == "true":
        return []
    found = []
    if max(spec.rollout.replicas, spec.rollout.autoscaling.max_replicas if spec.rollout.autoscaling else 0) > 1:
        # Unready pods never block a node's drain.
        limits: Manifest = {"maxUnavailable": "25%", "unhealthyPodEvictionPolicy": "AlwaysAllow"}
        found.append(_budget(inputs, names.Role.ROLLOUT, limits))
    if running and spec.trainer.nodes > 1:
        found.append(_budget(inputs, names.Role.TRAINER, {"minAvailable": spec.trainer.nodes}))
    return found


def _budget(inputs: Inputs, role: names.Role, limits: Manifest) -> Manifest:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(inputs, child_name(inputs, role), labels(inputs, role)),
        "spec": {"selector": {"matchLabels": selector(inputs, role)}, **limits},
    }
