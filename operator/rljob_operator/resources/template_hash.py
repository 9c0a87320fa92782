"""The hash of what a pod template is made from. Pods are rolled when it changes, never because we render otherwise.

Fields that a running job takes over by itself are not part of it: they change the ConfigMap alone. Fields at their
default are not either, so that a new version of the schema rolls nothing.
"""

import hashlib
import json

from rljob_api import names
from rljob_operator.resources.inputs import Inputs

ANNOTATION = "rljob.dev/template-hash"
LIVE = (
    ("suspend",),
    ("managedBy",),
    ("queue",),
    ("gang",),
    ("maxSteps",),
    ("activeDeadlineSeconds",),
    ("schedulingDeadlineSeconds",),
    ("startupDeadlineSeconds",),
    ("ttlSecondsAfterFinished",),
    ("cleanupPolicy",),
    ("failurePolicy",),
    ("rollout", "replicas"),
    ("rollout", "autoscaling"),
    ("verifier", "replicas"),
    ("async", "maxOffPolicySteps"),
    ("evaluation", "everySteps"),
    ("observability", "logLevel"),
)
_LENGTH = 16


def template_hash(inputs: Inputs, role: names.Role) -> str:
    """Return 16 hexadecimal digits of the role's own inputs; other roles' pods do not count."""
    spec = inputs.job.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    others = tuple((str(other), "pod") for other in names.Role if other is not role)
    for path in (*LIVE, *others):
        _drop(spec, path)
    parts = {
        "spec": {key: value for key, value in spec.items() if value != {}},
        "image": inputs.images[role],
        "template": inputs.templates.get(role),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:_LENGTH]


def _drop(section: dict[str, object], path: tuple[str, ...]) -> None:
    for key in path[:-1]:
        below = section.get(key)
        if not isinstance(below, dict):
            return
        section = below
    section.pop(path[-1], None)
